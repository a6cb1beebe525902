// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package githubtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// WriteJSON writes a response in the same way as GitHub's API.
func WriteJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-GitHub-Media-Type", "github.v3; format=json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// Message writes an error response of GitHub's API.
func Message(w http.ResponseWriter, status int, message string) {
	WriteJSON(w, status, map[string]string{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

func (g *GitHub) api(w http.ResponseWriter, r *http.Request, path string) {
	if path == "/rate_limit" {
		if id, secret, ok := r.BasicAuth(); ok && (id != ClientID || secret != ClientSecret) {
			Message(w, http.StatusUnauthorized, "Bad credentials")
			return
		}
		WriteJSON(w, http.StatusOK, map[string]any{"resources": map[string]any{"core": map[string]int{"limit": 5000, "used": 0, "remaining": 5000, "reset": 1}}})
		return
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		Message(w, http.StatusUnauthorized, "Requires authentication")
		return
	}
	g.mu.Lock()
	a, known := g.accounts[g.tokens[token]]
	g.mu.Unlock()
	switch {
	case !known:
		Message(w, http.StatusUnauthorized, "Bad credentials")
	case a.Suspended:
		Message(w, http.StatusForbidden, "Sorry. Your account was suspended.")
	case path == "/user":
		kind := a.Kind
		if kind == "" {
			kind = "User"
		}
		WriteJSON(w, http.StatusOK, map[string]any{"login": a.Login, "id": a.ID, "node_id": "MDQ6VXNlcjE=", "type": kind, "site_admin": false, "name": "A Person", "email": nil})
	case path == "/user/memberships/orgs":
		a.singleSignOn(w)
		page(w, r, a.memberships(r.URL.Query().Get("state")))
	case path == "/user/teams":
		a.singleSignOn(w)
		page(w, r, a.teams())
	default:
		Message(w, http.StatusNotFound, "Not Found")
	}
}

// singleSignOn sets the header of lists that omit organizations. The header identifies these organizations by number.
func (a Account) singleSignOn(w http.ResponseWriter) {
	if len(a.SSO) > 0 {
		w.Header().Set("X-GitHub-SSO", "partial-results; organizations=20582480"+strings.Repeat(",21955855", len(a.SSO)-1))
	}
}

func (a Account) memberships(state string) []any {
	var items []any
	for _, org := range slices.Sorted(maps.Keys(a.Orgs)) {
		if (state == "" || a.Orgs[org] == state) && !slices.Contains(a.SSO, org) {
			items = append(items, map[string]any{"state": a.Orgs[org], "role": "member", "organization": map[string]any{"login": org, "id": len(org)}, "user": map[string]any{"login": a.Login, "id": a.ID}})
		}
	}
	return items
}

func (a Account) teams() []any {
	var items []any
	for i, team := range a.Teams {
		org, slug, _ := strings.Cut(team, "/")
		if slices.Contains(a.SSO, org) {
			continue
		}
		items = append(items, map[string]any{"id": i + 1, "name": slug, "slug": slug, "privacy": "closed", "permission": "pull", "parent": nil, "organization": map[string]any{"login": org, "id": len(org)}})
	}
	return items
}

// page writes one page of items with the Link header that GitHub documents.
func page(w http.ResponseWriter, r *http.Request, items []any) {
	number := func(key string, otherwise int) int {
		if n, err := strconv.Atoi(r.URL.Query().Get(key)); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	size, at := min(number("per_page", 30), 100), number("page", 1)
	last := max(1, (len(items)+size-1)/size)
	var links []string
	link := func(n int, rel string) {
		q := r.URL.Query()
		q.Set("page", strconv.Itoa(n))
		links = append(links, fmt.Sprintf(`<https://%s%s?%s>; rel="%s"`, r.Host, r.URL.Path, q.Encode(), rel))
	}
	if at > 1 {
		link(at-1, "prev")
	}
	if at < last {
		link(at+1, "next")
		link(last, "last")
	}
	if at > 1 {
		link(1, "first")
	}
	if len(links) > 0 {
		w.Header().Set("Link", strings.Join(links, ", "))
	}
	from, to := min((at-1)*size, len(items)), min(at*size, len(items))
	WriteJSON(w, http.StatusOK, append([]any{}, items[from:to]...))
}
