// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity"
)

// asAlice is the header that an API server must get for alice.
var asAlice = http.Header{
	"Impersonate-User":                           {"hub:alice"},
	"Impersonate-Group":                          {"hub:dev", "hub:system:authenticated"},
	"Impersonate-Uid":                            {"u-1"},
	"Impersonate-Extra-Hub%3aexample.org%2fteam": {"red", "blue"},
}

func withPrefix(h http.Header, prefix string) http.Header {
	out := http.Header{}
	for name, values := range h {
		if hasFoldedPrefix(name, prefix) {
			out[name] = values
		}
	}
	return out
}

func TestImpersonate(t *testing.T) {
	id, err := identity.New(aliceInfo)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		id   identity.Identity
		want http.Header
	}{
		"user, groups, uid and extras are sent": {id, asAlice},
		"absent fields are not sent": {
			identity.Identity{User: "hub:bob"}, http.Header{"Impersonate-User": {"hub:bob"}},
		},
		"an extra's key is encoded in the way that API servers decode": {
			identity.Identity{User: "hub:bob", Extra: map[string][]string{"a b/ü%": {"v"}}},
			http.Header{"Impersonate-User": {"hub:bob"}, "Impersonate-Extra-A%20b%2f%c3%bc%25": {"v"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := impersonate(test.id); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
}

func TestRequestAtTheAgent(t *testing.T) {
	t.Run("CVE-2026-40575: the caller's identity arrives, and nothing else that the caller claims", func(t *testing.T) {
		h := newHubSide(t)
		response, _ := h.get(t, http.Header{
			"Cookie":                 {"R_SESS=abc", "other=1"},
			"X-Remote-User":          {"admin"},
			"X-Remote-Group":         {"system:masters"},
			"X-Remote-Extra-A":       {"b"},
			"X-Forwarded-For":        {"10.0.0.1"},
			"X-Forwarded-Uri":        {"/x"},
			"X-Forwarded-Proto":      {"https"},
			"Forwarded":              {"for=10.0.0.1"},
			"X-Real-Ip":              {"10.0.0.1"},
			"Priority":               {"u=0"},
			"Origin":                 {"https://evil.example"},
			"Referer":                {"https://hub.example/"},
			"Te":                     {"trailers"},
			"Keep-Alive":             {"timeout=5"},
			"Proxy-Connection":       {"keep-alive"},
			"Proxy-Authorization":    {"Basic abc"},
			"Accept":                 {"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"},
			"Accept-Encoding":        {"gzip"},
			"User-Agent":             {"kubectl/v1.36"},
			"Kubectl-Command":        {"kubectl get"},
			"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io"},
		})
		if response.StatusCode != http.StatusOK {
			t.Fatalf("got %d, want 200", response.StatusCode)
		}
		want := asAlice.Clone()
		want["Accept"] = []string{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
		want["Accept-Encoding"] = []string{"gzip"}
		want["User-Agent"] = []string{"kubectl/v1.36"}
		want["Kubectl-Command"] = []string{"kubectl get"}
		want["Te"] = []string{"trailers"}
		want["Sec-Websocket-Protocol"] = []string{"v4.channel.k8s.io"}
		if got := h.agent.only(t).Header; !reflect.DeepEqual(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
	t.Run("CVE-2021-31999, CVE-2022-23652: a Connection header that names an identity header is 400", func(t *testing.T) {
		for _, line := range []string{
			"Connection: Impersonate-User", "Connection: close, Impersonate-User, Impersonate-Group",
			"connection: keep-alive,\timpersonate-group ",
			"Connection: IMPERSONATE-UID", "Connection: Impersonate-Extra-Scopes",
			"Connection: close\r\nConnection: Impersonate-User",
			"Connection: Authorization", "cOnNeCtIoN: aUtHoRiZaTiOn", "Proxy-Connection: Impersonate-User",
			"Connection: X-Remote-User",
		} {
			h := newHubSide(t)
			for _, path := range []string{podsPath, "/k8s/local/api"} {
				response, body := h.raw(t, "GET "+path+" HTTP/1.1\r\nHost: hub\r\n"+
					"Authorization: Bearer t-alice\r\n"+line+"\r\n\r\n")
				wantStatus(t, response, body, http.StatusBadRequest, "BadRequest", "Connection")
			}
			if len(h.agent.all())+len(h.hub.all()) > 0 {
				t.Errorf("%q: the request was forwarded, want it refused", line)
			}
		}
	})
	t.Run("CVE-2021-31999: other names in Connection cost the caller only that header", func(t *testing.T) {
		h := newHubSide(t)
		h.raw(t, rawGet(podsPath, "Connection: X-Mine, close", "X-Mine: 1"))
		if got := h.agent.only(t).Header; !reflect.DeepEqual(withPrefix(got, "Impersonate-"), asAlice) ||
			got.Get("X-Mine") != "" {
			t.Errorf("got header %v, want alice's identity, and no X-Mine", got)
		}
	})
	t.Run("CVE-2021-36776, CVE-2026-17107: impersonation headers never pass without a review", func(t *testing.T) {
		for _, lines := range [][]string{
			{"Impersonate-User: admin"}, {"iMpErSoNaTe-uSeR: admin"},
			{"Impersonate-User: hub:alice", "Impersonate-Group: admins"},
		} {
			h := newHubSide(t)
			h.agent.answerWith(denyReviews)
			response, body := h.raw(t, rawGet(podsPath, lines...))
			wantStatus(t, response, body, http.StatusForbidden, "Forbidden", "hub:alice", "impersonate")
			for _, r := range h.agent.all() {
				if !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") ||
					!reflect.DeepEqual(withPrefix(r.Header, "Impersonate-"), asAlice) {
					t.Errorf("%v: %s arrived with %v, want an access review as alice", lines, r.URL, r.Header)
				}
			}
		}
	})
	t.Run("CVE-2021-36776: empty impersonation headers impersonate no one and do not pass either", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) {
			o.Authenticate = func(*http.Request) (identity.Identity, error) { return identity.New(bobInfo) }
			o.Authorize = func(context.Context, identity.Identity, types.NamespacedName) error { return nil }
		})
		h.raw(t, rawGet(podsPath, "Impersonate-User:", "Impersonate-Group:", "impersonate-group: ",
			"Impersonate-Uid:", "Impersonate-Extra-A:", "Impersonate-Else:"))
		want := http.Header{"Impersonate-User": {"hub:bob"}}
		if got := withPrefix(h.agent.only(t).Header, "Impersonate-"); !reflect.DeepEqual(got, want) {
			t.Errorf("got header %v, want %v", got, want)
		}
	})
	t.Run("announced trailers carry no identity", func(t *testing.T) {
		h := newHubSide(t)
		h.raw(t, "POST "+podsPath+" HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer t-alice\r\nTransfer-Encoding: chunked\r\n"+
			"Trailer: Impersonate-User\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\nImpersonate-User: admin\r\n\r\n")
		r := h.agent.only(t)
		if len(r.Trailer) > 0 || !reflect.DeepEqual(withPrefix(r.Header, "Impersonate-"), asAlice) {
			t.Errorf("got header %v and trailer %v, want alice's identity and no trailer", r.Header, r.Trailer)
		}
	})
	t.Run("the body arrives", func(t *testing.T) {
		h := newHubSide(t)
		response, _ := h.do(t, h.request(t, http.MethodPatch, podsPath+"/x", strings.NewReader(`{"a":1}`),
			http.Header{"Expect": {"100-continue"}}))
		if response.StatusCode != http.StatusOK || h.agent.bodies[0] != `{"a":1}` ||
			h.agent.only(t).Header.Get("Expect") != "" {
			t.Errorf("got %d and bodies %v, want 200, the unchanged body, and no Expect", response.StatusCode, h.agent.bodies)
		}
	})
}

func TestResponseToTheCaller(t *testing.T) {
	t.Run("the response passes without the fields that would affect the hub's host", func(t *testing.T) {
		h := newHubSide(t)
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			w.Header().Set("Warning", `299 - "old"`)
			w.Header().Set("Audit-Id", "1")
			w.Header().Add("Set-Cookie", "R_SESS=evil")
			w.Header().Add("Alt-Svc", `h2="evil.example:443"`)
			w.Header().Add("Strict-Transport-Security", "max-age=1")
			w.Header().Add("Clear-Site-Data", `"*"`)
			w.Header().Add("NEL", `{"report_to":"evil","max_age":31536000,"success_fraction":1}`)
			w.Header().Add("Report-To", `{"group":"evil","max_age":31536000,"endpoints":[{"url":"https://evil.example"}]}`)
			w.Header().Add("Reporting-Endpoints", `evil="https://evil.example"`)
			w.Header().Add("Service-Worker-Allowed", "/")
			w.Header().Add("Set-Login", "logged-in")
			w.Header().Add("Accept-CH", "Sec-CH-UA-Model")
			w.Header().Add("Use-As-Dictionary", `match="/k8s/*"`)
			w.Header().Add("Secure-Session-Registration", `(ES256);path="/"`)
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "k8s\x00")
		})
		response, body := h.get(t, nil)
		response.Header.Del("Date")
		want := http.Header{
			"Content-Type": {"application/vnd.kubernetes.protobuf"}, "Warning": {`299 - "old"`}, "Audit-Id": {"1"},
			"Content-Length": {"4"},
		}
		if response.StatusCode != http.StatusTeapot || body != "k8s\x00" || !reflect.DeepEqual(response.Header, want) {
			t.Errorf("got %d %v %q, want 418, the member's body and the header %v",
				response.StatusCode, response.Header, body, want)
		}
	})
	t.Run("compressed responses stay compressed", func(t *testing.T) {
		h := newHubSide(t)
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "not really gzip")
		})
		response, body := h.get(t, http.Header{"Accept-Encoding": {"gzip"}})
		if body != "not really gzip" || response.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("got header %v and body %q, want the body and its encoding unchanged", response.Header, body)
		}
	})
	t.Run("CVE-2022-3172: a redirect stays in the cluster, and is refused if it leads out", func(t *testing.T) {
		h := newHubSide(t)
		location := "/api/v1/namespaces"
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		if response, _ := h.get(t, nil); response.Header.Get("Location") != "/k8s/clusters/team-a/prod/api/v1/namespaces" {
			t.Errorf("redirected to %q, want the same place behind the hub's path", response.Header.Get("Location"))
		}
		location = "https://hub.example/k8s/local/api/v1/secrets"
		response, body := h.get(t, nil)
		wantStatus(t, response, body, http.StatusBadGateway, "BadGateway", "redirect")
		if response.Header.Get("Location") != "" {
			t.Errorf("redirected to %q, want no redirect out of the member", response.Header.Get("Location"))
		}
	})
}

// roundTripperFunc is an http.RoundTripper.
type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestNoIdentityNoUpstreamCall(t *testing.T) {
	called := 0
	upstream := roundTripperFunc(func(*http.Request) (*http.Response, error) {
		called++
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	id, err := identity.New(aliceInfo)
	if err != nil {
		t.Fatal(err)
	}
	request := func(c *call, header http.Header) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = header
		if c != nil {
			r = r.WithContext(contextWith(r, c))
		}
		return r
	}
	for name, r := range map[string]*http.Request{
		"a request without a call":                           request(nil, asAlice),
		"a call without a user":                              request(&call{transport: upstream, header: asAlice}, asAlice),
		"a call without a header that identifies the caller": request(&call{identity: id, transport: upstream}, asAlice),
		"a request that lost its user on the way": request(&call{identity: id, transport: upstream,
			header: asAlice}, http.Header{}),
		"a request whose user was changed on the way": request(&call{identity: id, transport: upstream, header: asAlice},
			changed(asAlice, "Impersonate-User", "admin")),
		"a request whose groups were changed on the way": request(&call{identity: id, transport: upstream, header: asAlice},
			changed(asAlice, "Impersonate-Group", "admins")),
	} {
		t.Run(name+" is not sent", func(t *testing.T) {
			if _, err := (callTransport{}).RoundTrip(r); !errors.Is(err, errNoIdentity) || called > 0 {
				t.Errorf("got %v after %d upstream calls, want an error and no call", err, called)
			}
		})
	}
	t.Run("a complete call is sent", func(t *testing.T) {
		if _, err := (callTransport{}).RoundTrip(request(&call{identity: id, transport: upstream, header: asAlice},
			asAlice)); err != nil || called != 1 {
			t.Errorf("got %v after %d upstream calls, want no error and one call", err, called)
		}
	})
	t.Run("CVE-2026-23990: an authenticator that returns neither a user nor an error opens nothing", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) {
			o.Authenticate = func(*http.Request) (identity.Identity, error) { return identity.Identity{}, nil }
		})
		for _, path := range []string{podsPath, "/k8s/local/api"} {
			response, body := h.do(t, h.request(t, http.MethodGet, path, nil, nil))
			wantStatus(t, response, body, http.StatusUnauthorized, "Unauthorized")
		}
		if h.members.calls()+len(h.agent.all())+len(h.hub.all()) > 0 {
			t.Error("a request arrived, want none")
		}
	})
	t.Run("a forwarder without a call responds with 500 and sends nothing", func(t *testing.T) {
		h := newHubSide(t)
		w := httptest.NewRecorder()
		h.handler.forwarder.ServeHTTP(w, httptest.NewRequest(http.MethodGet, podsPath, nil))
		wantStatus(t, w.Result(), w.Body.String(), http.StatusInternalServerError, "InternalError")
		if len(h.agent.all()) > 0 {
			t.Error("the request was sent, want it refused")
		}
	})
}

func changed(h http.Header, name, value string) http.Header {
	out := h.Clone()
	out[name] = []string{value}
	return out
}

// FuzzConnection checks that no header accepted by checkConnection names an identity header to a reader that splits it
// at commas.
func FuzzConnection(f *testing.F) {
	for _, seed := range []string{
		"close", "close, Impersonate-User", "impersonate-group", ",, Authorization ,", "\tX-Remote-User", "Impersonate-",
	} {
		f.Add("Connection", seed)
	}
	f.Add("connection", "AUTHORIZATION")
	f.Fuzz(func(t *testing.T, name, value string) {
		if err := checkConnection(http.Header{name: {value}}); err != nil {
			if !apierrors.IsBadRequest(err) {
				t.Fatalf("checkConnection returned %v, want a bad request", err)
			}
			return
		}
		if !strings.EqualFold(name, "Connection") {
			return
		}
		for option := range strings.SplitSeq(strings.ToLower(value), ",") {
			option = strings.TrimSpace(option)
			if strings.HasPrefix(option, "impersonate-") ||
				option == "authorization" || strings.HasPrefix(option, "x-remote-") {
				// a name that is not a token cannot be the name of a header either
				if strings.Trim(option, " \t") == option {
					t.Fatalf("checkConnection accepts %q, want it refused: it names a header that must arrive", value)
				}
			}
		}
	})
}
