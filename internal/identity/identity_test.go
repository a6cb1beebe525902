// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// The policies of a member compare these fields with the member's own nodes and pods.
func TestExtraFieldsOfHubTokensHaveTheHubPrefix(t *testing.T) {
	id, err := New(authenticationv1.UserInfo{
		Username: "system:serviceaccount:ci:deployer",
		Extra: map[string]authenticationv1.ExtraValue{
			"authentication.kubernetes.io/node-name": {"node-1"}, "authentication.kubernetes.io/pod-name": {"a"},
			"cluster.drover.dev/impersonator": {"eve"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for key := range id.Extra {
		if !strings.HasPrefix(key, "hub:") {
			t.Errorf("a member gets the key %s, want it with the prefix hub:", key)
		}
	}
	if len(id.Extra) != 3 || id.Hub.Extra["authentication.kubernetes.io/node-name"][0] != "node-1" {
		t.Errorf("the user is %+v, want the extra fields with the prefix for members and without it for the hub", id)
	}
}

func TestPrincipal(t *testing.T) {
	id, err := Principal("local:alice", "u-1")
	if err != nil || id.User != "local:alice" || id.Hub.Username != "local:alice" || id.UID != "u-1" ||
		len(id.Groups) != 0 || !slices.Equal(id.Hub.Groups, []string{"system:authenticated"}) {
		t.Fatalf("the identity is %+v, %v, want the same name on the hub and in members", id, err)
	}
	if hub, err := New(authenticationv1.UserInfo{Username: "local:alice"}); err != nil || hub.User == id.User {
		t.Errorf("a hub user with the name of a principal is %q in members, %v, want another name", hub.User, err)
	}
	for _, name := range []string{
		"", "alice", ":alice", "local:", "hub:alice", "system:masters", "system:serviceaccount:a:b", "local:a\nb",
		"local:alice ",
	} {
		if id, err := Principal(name, "u-1"); err == nil {
			t.Errorf("%q is accepted as the principal %+v, want an error", name, id)
		}
	}
}

// CVE-2026-23990: a user without a name is mistaken for the user that forwards the request.
func TestNew(t *testing.T) {
	t.Run("names of the hub get its prefix, so that its system:masters has no rights in a member", func(t *testing.T) {
		info := authenticationv1.UserInfo{
			Username: "system:serviceaccount:ci:deployer", UID: "u-1", Groups: []string{"system:masters",
				"system:authenticated"},
			Extra: map[string]authenticationv1.ExtraValue{"example.org/team": {"a", "b"}},
		}
		got, err := New(info)
		if err != nil {
			t.Fatal(err)
		}
		want := Identity{
			User: "hub:system:serviceaccount:ci:deployer", UID: "u-1", Groups: []string{"hub:system:masters",
				"hub:system:authenticated"},
			Extra: map[string][]string{"hub:example.org/team": {"a", "b"}}, Hub: info,
		}
		if !reflect.DeepEqual(want, got) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
	t.Run("a group without a name is left out", func(t *testing.T) {
		got, err := New(authenticationv1.UserInfo{Username: "alice", Groups: []string{"", "dev"}})
		if err != nil || !reflect.DeepEqual(got.Groups, []string{"hub:dev"}) {
			t.Errorf("got %+v, %v, want only the group hub:dev", got, err)
		}
	})
	for name, info := range map[string]authenticationv1.UserInfo{
		"a user without a name is refused":          {},
		"anonymous is refused":                      {Username: "system:anonymous"},
		"a name with a line break is refused":       {Username: "alice\r\nImpersonate-Group: system:masters"},
		"a name with a trailing space is refused":   {Username: "alice "},
		"a group with a line break is refused":      {Username: "alice", Groups: []string{"a\nb"}},
		"a uid with a control character is refused": {Username: "alice", UID: "a\x00"},
		"an extra value with a leading space is refused": {
			Username: "alice", Extra: map[string]authenticationv1.ExtraValue{"k": {" v"}},
		},
		"an extra key with a line break is refused": {
			Username: "alice", Extra: map[string]authenticationv1.ExtraValue{"k\n": {"v"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if id, err := New(info); err == nil || id.Valid() {
				t.Errorf("got %+v, %v, want an error", id, err)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	base := func() Identity {
		id, err := New(authenticationv1.UserInfo{
			Username: "alice", UID: "1", Groups: []string{"a", "b"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"},
				"l": {"w", "x"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	seen := map[[32]byte]string{base().Digest("x", "y"): "base"}
	for name, id := range map[string]func(*Identity) []string{
		"another user":     func(i *Identity) []string { i.User = "hub:bob"; return []string{"x", "y"} },
		"another uid":      func(i *Identity) []string { i.UID = "2"; return []string{"x", "y"} },
		"another hub user": func(i *Identity) []string { i.Hub.Username = "bob"; return []string{"x", "y"} },
		"joined groups": func(i *Identity) []string {
			i.Groups = []string{"hub:ahub:b"}
			return []string{"x",
				"y"}
		},
		"a group less": func(i *Identity) []string { i.Groups = i.Groups[:1]; return []string{"x", "y"} },
		"another extra": func(i *Identity) []string {
			i.Extra = map[string][]string{"k": {"v",
				"l"}}
			return []string{"x", "y"}
		},
		"joined parts":            func(*Identity) []string { return []string{"xy"} },
		"parts split differently": func(*Identity) []string { return []string{"", "xy"} },
	} {
		other := base()
		further := id(&other)
		key := other.Digest(further...)
		if before, dup := seen[key]; dup {
			t.Errorf("%s has the digest of %s, want another one", name, before)
		}
		seen[key] = name
	}
	if first, second := base(), base(); first.Digest("x", "y") != second.Digest("x", "y") {
		t.Error("equal identities have different digests, want the same")
	}
}

// CVE-2023-48312: with an empty token, a proxy sends its own credentials.
func TestToken(t *testing.T) {
	websocket := func(protocols ...string) http.Header {
		return http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"WebSocket"}, headerProtocol: protocols}
	}
	const secret = bearerProtocol + "c2VjcmV0" // "secret"
	for name, test := range map[string]struct {
		header http.Header
		want   string // empty: refused with 401
	}{
		"a bearer token is used":                             {http.Header{"Authorization": {"Bearer abc"}}, "abc"},
		"the scheme's case does not matter":                  {http.Header{"Authorization": {"bEARER  abc "}}, "abc"},
		"a WebSocket's token among the subprotocols is used": {websocket("v5.channel.k8s.io, " + secret), "secret"},
		"subprotocols may come in several headers":           {websocket("v5.channel.k8s.io", secret), "secret"},
		"the Authorization header wins over a subprotocol": {
			merge(websocket("v4", secret), "Authorization", "Bearer abc"), "abc",
		},
		"no token is refused":     {http.Header{}, ""},
		"a cookie is not a token": {http.Header{"Cookie": {"R_SESS=abc; token=abc"}}, ""},
		"two Authorization headers are refused": {
			http.Header{"Authorization": {"Bearer abc", "Bearer abc"}}, "",
		},
		"another scheme is refused":                   {http.Header{"Authorization": {"Basic YTpi"}}, ""},
		"a scheme without a token is refused":         {http.Header{"Authorization": {"Bearer"}}, ""},
		"an empty token is refused":                   {http.Header{"Authorization": {"Bearer "}}, ""},
		"a token with a space is refused":             {http.Header{"Authorization": {"Bearer a b"}}, ""},
		"a token with a control character is refused": {http.Header{"Authorization": {"Bearer a\x01b"}}, ""},
		"a token of 64 KiB is accepted": {
			http.Header{"Authorization": {"Bearer " + strings.Repeat("a", MaxToken)}}, strings.Repeat("a", MaxToken),
		},
		"a longer token is refused": {
			http.Header{"Authorization": {"Bearer " + strings.Repeat("a", MaxToken+1)}}, "",
		},
		"a subprotocol without a WebSocket is not a token": {http.Header{headerProtocol: {"v4, " + secret}}, ""},
		"a token as the only subprotocol is refused":       {websocket(secret), ""},
		"two tokens among the subprotocols are refused":    {websocket("v4", secret, secret), ""},
		"a token that is not base64url is refused":         {websocket("v4", bearerProtocol+"c2Vj=="), ""},
		"a token that is not UTF-8 is refused":             {websocket("v4", bearerProtocol+"__8"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/?token=abc&access_token=abc", nil)
			r.Header = test.header
			got, err := Token(r)
			if test.want == "" {
				if !apierrors.IsUnauthorized(err) {
					t.Fatalf("got %q, %v, want a refusal with 401", got, err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func merge(h http.Header, name, value string) http.Header {
	h.Set(name, value)
	return h
}

func TestRemoveToken(t *testing.T) {
	for name, test := range map[string]struct{ header, want http.Header }{
		"Authorization is removed": {
			http.Header{"Authorization": {"Bearer a"}, "Accept": {"b"}}, http.Header{"Accept": {"b"}},
		},
		"a token among subprotocols is removed, and the others keep their order": {
			http.Header{headerProtocol: {"v5, " + bearerProtocol + "abc", "v4"}}, http.Header{headerProtocol: {"v5, v4"}}},
		"a header that contains only tokens is removed": {
			http.Header{headerProtocol: {bearerProtocol + "abc," + bearerProtocol}}, http.Header{},
		},
		"subprotocols without a token do not change": {
			http.Header{headerProtocol: {"v5 ,v4", "v3"}}, http.Header{headerProtocol: {"v5 ,v4", "v3"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			RemoveToken(test.header)
			if !reflect.DeepEqual(test.want, test.header) {
				t.Errorf("got  %+v\nwant %+v", test.header, test.want)
			}
		})
	}
}

func FuzzToken(f *testing.F) {
	f.Add("Bearer abc", "v4, "+bearerProtocol+"c2VjcmV0", true)
	f.Add("", "v4,"+bearerProtocol, true)
	f.Add("bearer \t x", "", false)
	f.Fuzz(func(t *testing.T, authorization, protocols string, ws bool) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if authorization != "" {
			r.Header["Authorization"] = []string{authorization}
		}
		r.Header[headerProtocol] = []string{protocols}
		if ws {
			r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		}
		token, err := Token(r)
		var refused *refusal.Error
		if err != nil && (!errors.As(err, &refused) || token != "") {
			t.Fatalf("got %q, %v, want a refusal and an empty token", token, err)
		}
		if err == nil && (token == "" || len(token) > MaxToken || strings.ContainsAny(token, " \r\n\x00")) {
			t.Fatalf("got %q, want a well-formed token", token)
		}
		RemoveToken(r.Header)
		left := strings.Contains(strings.Join(r.Header[headerProtocol], ","), bearerProtocol) &&
			hasTokenProtocol(r.Header[headerProtocol])
		if _, found := r.Header["Authorization"]; found || left {
			t.Fatalf("the header is %v, want no token in it", r.Header)
		}
	})
}

func hasTokenProtocol(values []string) bool {
	for _, value := range values {
		for protocol := range strings.SplitSeq(value, ",") {
			if strings.HasPrefix(strings.TrimSpace(protocol), bearerProtocol) {
				return true
			}
		}
	}
	return false
}

func TestSharer(t *testing.T) {
	for name, tt := range map[string]struct{ user, want string }{
		"a user has a share": {"alice", "alice"},
		"the service accounts of a namespace have one share": {
			"system:serviceaccount:ci:deployer", "system:serviceaccount:ci",
		},
		"a user with a similar name has a share": {
			"x:system:serviceaccount:ci:a", "x:system:serviceaccount:ci:a",
		},
		"a malformed service account": {"system:serviceaccount:ci", "system:serviceaccount:ci"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Identity{Hub: authenticationv1.UserInfo{Username: tt.user}}).Sharer(); got != tt.want {
				t.Errorf("the sharer of %q is %q, want %q", tt.user, got, tt.want)
			}
		})
	}
}
