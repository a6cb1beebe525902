// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/drover-dev/drover/internal/request"
)

func of(t testing.TB, method, target string, header ...string) request.Info {
	t.Helper()
	r := httptest.NewRequest(method, "http://hub"+target, nil)
	for n := 0; n+1 < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	return request.Of(r, r.URL.Path)
}

func TestOf(t *testing.T) {
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "SPDY/3.1"}
	for name, tt := range map[string]struct {
		method, target string
		header         []string
		want           request.Info
	}{
		"an object of the core group": {method: "GET", target: "/api/v1/namespaces/web/pods/a",
			want: request.Info{Verb: "get", Version: "v1", Namespace: "web", Resource: "pods", Name: "a"}},
		"a collection is a list": {method: "GET", target: "/apis/apps/v1/namespaces/web/deployments?limit=500",
			want: request.Info{Verb: "list", Group: "apps", Version: "v1", Namespace: "web", Resource: "deployments"}},
		"a watch of a collection lasts": {method: "GET", target: "/api/v1/pods?watch=true",
			want: request.Info{Verb: "watch", Version: "v1", Resource: "pods", Long: true}},
		"watch=0 is not a watch": {method: "GET", target: "/api/v1/pods?watch=0",
			want: request.Info{Verb: "list", Version: "v1", Resource: "pods"}},
		"watch without a value is a watch": {method: "GET", target: "/api/v1/pods?watch",
			want: request.Info{Verb: "watch", Version: "v1", Resource: "pods", Long: true}},
		"the old form of a watch lasts": {method: "GET", target: "/api/v1/watch/namespaces/web/pods",
			want: request.Info{Verb: "watch", Version: "v1", Namespace: "web", Resource: "pods", Long: true}},
		"a collection that is limited to one name has that name": {method: "GET",
			target: "/api/v1/namespaces/web/pods?watch=1&fieldSelector=metadata.name%3Da",
			want:   request.Info{Verb: "watch", Version: "v1", Namespace: "web", Resource: "pods", Name: "a", Long: true}},
		"a namespace is in its own namespace": {method: "PUT", target: "/api/v1/namespaces/web/finalize",
			want: request.Info{Verb: "update", Version: "v1", Namespace: "web", Resource: "namespaces", Name: "web",
				Subresource: "finalize"}},
		"a create": {method: "POST", target: "/api/v1/namespaces/web/secrets",
			want: request.Info{Verb: "create", Version: "v1", Namespace: "web", Resource: "secrets"}},
		"a deletion of a collection": {method: "DELETE", target: "/api/v1/namespaces/web/secrets",
			want: request.Info{Verb: "deletecollection", Version: "v1", Namespace: "web", Resource: "secrets"}},
		"logs are short": {method: "GET", target: "/api/v1/namespaces/web/pods/a/log?follow=false",
			want: request.Info{Verb: "get", Version: "v1", Namespace: "web", Resource: "pods", Name: "a", Subresource: "log"}},
		"logs that are followed last": {method: "GET", target: "/api/v1/namespaces/web/pods/a/log?follow=true",
			want: request.Info{Verb: "get", Version: "v1", Namespace: "web", Resource: "pods", Name: "a", Subresource: "log",
				Long: true}},
		"an exec lasts": {method: "POST", target: "/api/v1/namespaces/web/pods/a/exec?command=ls", header: upgrade,
			want: request.Info{Verb: "create", Version: "v1", Namespace: "web", Resource: "pods", Name: "a", Subresource: "exec",
				Long: true}},
		"a request that is proxied to a workload lasts": {method: "GET",
			target: "/api/v1/namespaces/web/services/s/proxy/a/b/c/d/e",
			want: request.Info{Verb: "get", Version: "v1", Namespace: "web", Resource: "services", Name: "s",
				Subresource: "proxy", Long: true}},
		"any upgrade lasts": {method: "GET", target: "/version", header: upgrade,
			want: request.Info{Verb: "get", Long: true}},
		"discovery is not a resource": {method: "GET", target: "/apis/apps/v1", want: request.Info{Verb: "get"}},
		"the root is not a resource":  {method: "GET", target: "/", want: request.Info{Verb: "get"}},
		"an unknown method has no verb": {method: "BREW", target: "/api/v1/pods",
			want: request.Info{Version: "v1", Resource: "pods"}},
		"a lone watch prefix is a resource": {method: "GET", target: "/api/v1/watch", want: request.Info{Verb: "get"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := of(t, tt.method, tt.target, tt.header...)
			got.Path = ""
			if got != tt.want {
				t.Errorf("%s %s\n got %+v\nwant %+v", tt.method, tt.target, got, tt.want)
			}
		})
	}
}

func FuzzOfNeverPanics(f *testing.F) {
	for _, path := range []string{"", "/", "//", "/api/v1/", "/apis/a/b/watch/namespaces", "/api/v1/namespaces//pods",
		"/api/v1/watch//"} {
		f.Add("GET", path, "watch=%zz&fieldSelector=metadata.name=")
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		r := &http.Request{Method: method, Header: http.Header{}, URL: httptest.NewRequest("GET", "/", nil).URL}
		r.URL.RawQuery = query
		if got := request.Of(r, path); got.Path != path {
			t.Errorf("the path %q became %q, want it unchanged", path, got.Path)
		}
	})
}

// BenchmarkOf reports the cost of reading one request. Compare with: go test -bench Of -count 10 ./internal/request |
// benchstat -
func BenchmarkOf(b *testing.B) {
	r := httptest.NewRequest("GET", "http://hub/api/v1/namespaces/web/configmaps/settings", nil)
	b.ReportAllocs()
	for b.Loop() {
		request.Of(r, r.URL.Path)
	}
}
