// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Limits on lists. A page of 100 teams is about 300 KB in size.
const (
	perPage   = 100
	maxPages  = 120
	maxGroups = 10_000
	maxLink   = 8 << 10
)

// groups returns the organizations that the user is an active member of, and the user's teams in these organizations,
// in the format organization/team. It also returns a notice if GitHub omitted some organizations.
func (c *Connector) groups(ctx context.Context, token string) (groups []string, notice string, err error) {
	type organization struct {
		Login string `json:"login"`
	}
	type membership struct {
		State        string       `json:"state"`
		Organization organization `json:"organization"`
	}
	partial, err := list(ctx, c, token, "/user/memberships/orgs", url.Values{"state": {"active"}}, func(m membership) {
		// A membership is pending until the user accepts the invitation. Users can be invited without their consent.
		if org := strings.ToLower(m.Organization.Login); m.State == "active" && loginForm.MatchString(org) && c.counts(org) {
			groups = append(groups, org)
		}
	})
	if partial {
		notice = leftOut
	}
	if err != nil || len(groups) == 0 {
		return nil, notice, err
	}
	orgs := slices.Clone(groups)
	type team struct {
		Slug         string       `json:"slug"`
		Organization organization `json:"organization"`
	}
	partial, err = list(ctx, c, token, "/user/teams", nil, func(t team) {
		if org := strings.ToLower(t.Organization.Login); slices.Contains(orgs, org) && teamForm.MatchString(t.Slug) {
			groups = append(groups, org+"/"+t.Slug)
		}
	})
	if err != nil {
		return nil, "", err
	}
	if partial {
		notice = leftOut
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	if len(groups) > maxGroups {
		return nil, "", fmt.Errorf("the user has %d organizations and teams, more than %d: name the organizations that "+
			"count in the provider", len(groups), maxGroups)
	}
	return groups, notice, nil
}

// headerSSO is the header in which GitHub reports that a list omits organizations, or that an organization refuses the
// request. This happens if the user has not authorized the app in the organization's SAML single sign-on.
const headerSSO = "X-GitHub-SSO"

// leftOut is a notice for users and the log. It does not name the omitted organizations, because GitHub reports only
// their IDs.
const leftOut = "GitHub left out organizations that require SAML single sign-on, and their teams: " +
	"sign in through their single sign-on at GitHub, authorize this app there, and sign in here again"

// counts reports whether an organization is allowed to provide groups. Without this check, anyone could create an
// organization whose name occurs in a binding, and would get the rights that the binding grants.
func (c *Connector) counts(org string) bool {
	return len(c.orgs) == 0 || slices.Contains(c.orgs, org)
}

// list passes the items on all pages to the function each, and reports whether GitHub omitted items because of single
// sign-on. It takes only the number of the next page from the Link header. The address is always the configured one, so
// a response from GitHub cannot determine where the token is sent.
func list[T any](ctx context.Context, c *Connector, token, path string, query url.Values, each func(T)) (partial bool,
	err error) {
	for page := 1; page <= maxPages; page++ {
		q := url.Values{"per_page": {strconv.Itoa(perPage)}, "page": {strconv.Itoa(page)}}
		maps.Copy(q, query)
		var items []T
		header, err := c.get(ctx, path+"?"+q.Encode(), bearer(token), &items)
		if err != nil {
			return partial, err
		}
		partial = partial || strings.HasPrefix(header.Get(headerSSO), "partial-results")
		if len(items) > perPage {
			return partial, fmt.Errorf("GitHub's list at %s%s has more than %d items on a page", c.api, path, perPage)
		}
		for _, item := range items {
			each(item)
		}
		next, ok := nextPage(header)
		if !ok {
			return partial, nil
		}
		if next != page+1 {
			return partial, fmt.Errorf("GitHub's list at %s%s continues in an unknown way: page %d is followed by "+
				"page %d", c.api, path, page, next)
		}
	}
	return partial, fmt.Errorf("GitHub's list at %s%s has more than %d pages of %d", c.api, path, maxPages, perPage)
}

// nextPage returns the number of the next page from the Link header, for example
// <https://api.github.com/user/teams?page=2>; rel="next". If the header names a next page without a valid number,
// nextPage returns 0 and true.
func nextPage(header http.Header) (page int, follows bool) {
	for _, value := range header.Values("Link") {
		if len(value) > maxLink {
			return 0, true
		}
		for value != "" {
			_, rest, found := strings.Cut(value, "<")
			if !found {
				break
			}
			target, rest, found := strings.Cut(rest, ">")
			if !found {
				break
			}
			parameters, rest, _ := strings.Cut(rest, ",")
			if value = rest; isNext(parameters) {
				return pageOf(target), true
			}
		}
	}
	return 0, false
}

func isNext(parameters string) bool {
	for one := range strings.SplitSeq(parameters, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(one), "=")
		if strings.EqualFold(strings.TrimSpace(key), "rel") &&
			slices.Contains(strings.Fields(strings.ToLower(strings.Trim(strings.TrimSpace(value), `"`))), "next") {
			return true
		}
	}
	return false
}

func pageOf(target string) int {
	u, err := url.Parse(target)
	if err != nil {
		return 0
	}
	page, err := strconv.Atoi(u.Query().Get("page"))
	if err != nil || page < 1 || page > maxPages+1 {
		return 0
	}
	return page
}
