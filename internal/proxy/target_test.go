// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CVE-2022-3162: a path leads to something other than the authorized target.
func TestPaths(t *testing.T) {
	const cluster = "/k8s/clusters/team-a/prod"
	for name, test := range map[string]struct {
		target string
		want   string // the path in the request line at the agent; empty if the path is refused with 400
	}{
		"a path is passed on byte for byte":     {cluster + "/api/v1/pods", "/v1/k8s/api/v1/pods"},
		"the cluster's root may lack its slash": {cluster, "/v1/k8s/"},
		"the cluster's root is passed on":       {cluster + "/", "/v1/k8s/"},
		"the query is kept, even the parts that Go cannot parse": {
			cluster + "/api?a=1&b=%zz;c=2&a=3", "/v1/k8s/api?a=1&b=%zz;c=2&a=3",
		},
		"an encoded slash in the cluster's path stays encoded": {
			cluster + "/api/v1/nodes/n/proxy/a%2Fb%2fc", "/v1/k8s/api/v1/nodes/n/proxy/a%2Fb%2fc",
		},
		"two slashes inside the cluster's path stay": {
			cluster + "/api/v1/nodes/n/proxy/a//b/", "/v1/k8s/api/v1/nodes/n/proxy/a//b/",
		},
		"other encodings stay unchanged": {
			cluster + "/apis/x/%41%20b%C3%A4+", "/v1/k8s/apis/x/%41%20b%C3%A4+",
		},
		"a segment that only begins with dots is passed on": {
			cluster + "/api/v1/nodes/n/proxy/..a/...", "/v1/k8s/api/v1/nodes/n/proxy/..a/...",
		},
		"a dot segment that is encoded twice is passed on unchanged": {
			cluster + "/api/%252e%252e/x", "/v1/k8s/api/%252e%252e/x",
		},
		"a name with dots is a name": {"/k8s/clusters/team-a/prod.eu/api", ""},
		// unknown, see below
		"dot-dot into another cluster is refused":               {cluster + "/../other/api", ""},
		"dot-dot out of the prefix is refused":                  {cluster + "/../../../local/api", ""},
		"dot-dot at the end is refused":                         {cluster + "/api/..", ""},
		"an encoded dot-dot is refused":                         {cluster + "/%2e%2e/other/api", ""},
		"a half encoded dot-dot is refused":                     {cluster + "/.%2E/other/api", ""},
		"dot-dot between encoded slashes is refused":            {cluster + "/api%2f..%2f..%2fother", ""},
		"an encoded dot-dot between encoded slashes is refused": {cluster + "/api%2f%2e%2e%2fother", ""},
		"a dot segment is refused":                              {cluster + "/./api", ""},
		"dot-dot as a name is refused":                          {"/k8s/clusters/team-a/../api", ""},
		"a backslash is refused":                                {cluster + `/..\x`, ""},
		"an encoded backslash is refused":                       {cluster + "/api%5c..%5cother", ""},
		"an encoded slash in the namespace is refused":          {"/k8s/clusters/team-a%2fprod/x/api", ""},
		"an encoded slash in the name is refused":               {"/k8s/clusters/team-a/prod%2fapi", ""},
		"an encoded letter in the name is refused":              {"/k8s/clusters/team-a/%70rod/api", ""},
		"an encoded letter in the prefix is refused":            {"/k8s/%63lusters/team-a/prod/api", ""},
		"two slashes before the cluster's path are refused":     {cluster + "//evil.example/api", ""},
		"an empty namespace is refused":                         {"/k8s/clusters//prod/api", ""},
		"an empty name is refused":                              {"/k8s/clusters/team-a//api", ""},
		"a missing name is refused":                             {"/k8s/clusters/team-a", ""},
		"an empty target is refused":                            {"/k8s/clusters/", ""},
		"upper case in the name is refused":                     {"/k8s/clusters/team-a/Prod/api", ""},
		"a namespace with a dot is refused":                     {"/k8s/clusters/team.a/prod/api", ""},
		"a name that begins with a dash is refused":             {"/k8s/clusters/team-a/-prod/api", ""},
		"a name with an underscore is refused":                  {"/k8s/clusters/team-a/pr_od/api", ""},
		"a name with a semicolon is refused":                    {"/k8s/clusters/team-a/prod;x/api", ""},
		"a name that is too long is refused": {
			"/k8s/clusters/team-a/" + strings.Repeat("a", 254) + "/api", "",
		},
		"two slashes before everything are refused":       {"//k8s/clusters/team-a/prod/api", ""},
		"an absolute target is refused":                   {"http://evil.example" + cluster + "/api", ""},
		"an absolute target of the hub itself is refused": {"http://hub.example" + cluster + "/api", ""},
		"a path that only begins like local is refused":   {"/k8s/localhost/api", ""},
		"dot-dot from local into a cluster is refused":    {"/k8s/local/../clusters/team-a/prod/api", ""},
		"two slashes after local are refused":             {"/k8s/local//api", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHubSide(t)
			response, body := h.raw(t, rawGet(test.target))
			if name == "a name with dots is a name" {
				wantStatus(t, response, body, http.StatusNotFound, "NotFound")
				return
			}
			if test.want == "" {
				wantStatus(t, response, body, http.StatusBadRequest, "BadRequest")
				if h.members.calls()+len(h.agent.all())+len(h.hub.all()) > 0 {
					t.Error("a request arrived, want it refused")
				}
				return
			}
			if got := h.agent.only(t).RequestURI; response.StatusCode != http.StatusOK || got != test.want {
				t.Errorf("got %d and the path %q at the agent, want %q", response.StatusCode, got, test.want)
			}
		})
	}
	t.Run("a target that is not a path is refused", func(t *testing.T) {
		h := newHubSide(t)
		response, body := h.raw(t, "OPTIONS * HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
		if response.StatusCode == http.StatusOK && response.ContentLength != 0 || len(h.agent.all()) > 0 {
			t.Errorf("got %d %q, want a refusal", response.StatusCode, body)
		}
	})
	for _, method := range []string{http.MethodConnect, http.MethodTrace} {
		t.Run("method "+method+" is refused", func(t *testing.T) {
			r := httptest.NewRequest(method, "http://hub"+podsPath, nil)
			r.URL = parseURL(t, podsPath)
			r.Header.Set("Authorization", "Bearer t-alice")
			w := httptest.NewRecorder()
			newHubSide(t).handler.ServeHTTP(w, r)
			wantStatus(t, w.Result(), w.Body.String(), http.StatusMethodNotAllowed, "MethodNotAllowed")
		})
	}
}

// FuzzParseTarget checks the properties of the path tests for every path: a prefix has only one spelling, and the rest
// of the path cannot lead out of it.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{
		"/k8s/clusters/a/b/api", "/k8s/clusters/a/b/%2e%2e/c", "/k8s/local/api%2fx", "/k8s/clusters/a/b",
		"/k8s/clusters/a/b//c",
		`/k8s/local/\..`, "/k8s/local/ ", "/k8s/local/a!*'()|%41",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		u, err := url.ParseRequestURI(line)
		if err != nil {
			return
		}
		to, err := parseTarget(&http.Request{URL: u})
		if err != nil {
			if !apierrors.IsBadRequest(err) {
				t.Fatalf("parseTarget(%q) returned %v, want a refusal with 400", line, err)
			}
			return
		}
		want := PathLocal
		if !to.local {
			want = PathClusters + to.cluster.Namespace + "/" + to.cluster.Name
		}
		if to.prefix != want || !strings.HasPrefix(line, want) {
			t.Fatalf("parseTarget(%q) returned the prefix %q, want the prefix of a cluster or local", line, to.prefix)
		}
		if cleaned := path.Clean("/x" + to.path); cleaned != "/x" && !strings.HasPrefix(cleaned, "/x/") {
			t.Fatalf("parseTarget(%q) returned the path %q, which leads out of the prefix", line, to.path)
		}
		out := url.URL{}
		to.write(&out, nil)
		sent := out.EscapedPath()
		received, _, _ := strings.Cut(line, "?")
		if rest := strings.TrimPrefix(received, want); rest != "" && sent != "/v1/k8s"+rest && !needsEncoding(rest) {
			t.Fatalf("parseTarget(%q) sends %q, want %q", line, sent, "/v1/k8s"+rest)
		}
		if back, err := url.ParseRequestURI(sent); err != nil || back.Path != "/v1/k8s"+to.path {
			t.Fatalf("parseTarget(%q): the sent path %q is read as %v, %v, want the same path",
				line, sent, back, err)
		}
	})
}

// needsEncoding reports whether a path has bytes that a URL cannot have. If a client sends them unencoded, they are
// passed on encoded.
func needsEncoding(path string) bool {
	return strings.ContainsFunc(path, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune("\"#<>?[]^`{|}", c)
	})
}

func TestRelocate(t *testing.T) {
	const prefix = "/k8s/clusters/team-a/prod"
	for name, test := range map[string]struct{ at, location, want string }{
		"a path moves behind the prefix": {"/api", "/api/v1/x?y=1#z", prefix + "/api/v1/x?y=1#z"},
		"an absolute address of an API path moves behind the prefix": {
			"/api", "https://10.96.0.1:443/api/v1/x", prefix + "/api/v1/x",
		},
		"a relative path is relative to the request": {
			"/api/v1/nodes/n/proxy/a/b", "../c/", prefix + "/api/v1/nodes/n/proxy/c/",
		},
		"a relative path after a trailing slash": {
			"/api/v1/nodes/n/proxy/a/", "c", prefix + "/api/v1/nodes/n/proxy/a/c",
		},
		"a query alone keeps the path":        {"/api/v1", "?x=1", prefix + "/api/v1?x=1"},
		"the root becomes the cluster's root": {"/api", "/", prefix + "/"},
		"dot-dot does not lead out":           {"/api", "/../../../local/api", prefix + "/local/api"},
		"an encoded dot-dot does not lead out": {
			"/api", "/%2e%2e/%2e%2e/other/api", prefix + "/other/api",
		},
		"a relative dot-dot does not lead out": {
			"/api", "../../../../local/api", prefix + "/local/api",
		},
		"a path of the hub becomes a path in the cluster": {"/api", "/k8s/local/api", prefix + "/k8s/local/api"},
		"three slashes become one": {
			"/api", "///evil.example/x", prefix + "/evil.example/x",
		},
		"another host is refused":                  {"/api", "https://evil.example/login", ""},
		"another host without a scheme is refused": {"/api", "//evil.example/login", ""},
		"the hub's host is refused": {
			"/api", "https://hub.example/k8s/clusters/team-a/other/api", "",
		},
		"a backslash is refused":           {"/api", `/\evil.example`, ""},
		"an encoded backslash is refused":  {"/api", `/%5cevil.example`, ""},
		"another scheme is refused":        {"/api", "javascript:alert(1)", ""},
		"a user in the address is refused": {"/api", "https://a:b@10.0.0.1/api/v1", ""},
		"an invalid address is refused":    {"/api", "http://[::1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := target{prefix: prefix, path: test.at}.relocate(test.location)
			if got != test.want || ok != (test.want != "") {
				t.Errorf("relocate(%q) at %q = %q, %v, want %q",
					test.location, test.at, got, ok, test.want)
			}
		})
	}
}

// FuzzRelocate checks that no Location leads a client out of its cluster.
func FuzzRelocate(f *testing.F) {
	for _, seed := range []string{
		"/api/../../x", "//evil/api/x", "https://h/api/../..//x", "..%2f..%2fx", "?a", "/\t/x", "/.%2e/", "http:/x", "a:b",
	} {
		f.Add("/api/v1", seed)
	}
	const prefix = "/k8s/clusters/a/b"
	f.Fuzz(func(t *testing.T, at, location string) {
		if !strings.HasPrefix(at, "/") {
			return
		}
		got, ok := target{prefix: prefix, path: at}.relocate(location)
		if !ok {
			return
		}
		base, err := url.Parse("https://hub.example" + prefix + "/api")
		if err != nil {
			t.Fatal(err)
		}
		there, err := base.Parse(got)
		if err != nil {
			t.Fatalf("relocate(%q) = %q does not parse: %v", location, got, err)
		}
		if there.Scheme != "https" || there.Host != "hub.example" || !strings.HasPrefix(there.Path, prefix+"/") ||
			strings.ContainsAny(got, "\\\r\n") {
			t.Fatalf("relocate(%q) = %q leads to %s, want a path in the cluster", location, got, there)
		}
	})
}
