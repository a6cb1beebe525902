// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net/http"
	"testing"
)

func TestMayOpenAdmitsOnlyPagesOfTheHubOrWithAToken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		host   string
		header http.Header
		want   bool
	}{
		"no browser":                            {"hub", http.Header{}, true},
		"a page of the hub":                     {"hub", http.Header{"Origin": {"https://hub"}}, true},
		"a page of the hub, in capitals":        {"hub", http.Header{"Origin": {"https://HUB"}}, true},
		"the default port in Host":              {"hub:443", http.Header{"Origin": {"https://hub"}}, true},
		"the default port in Origin":            {"hub", http.Header{"Origin": {"https://hub:443"}}, true},
		"the default port of HTTP":              {"hub:80", http.Header{"Origin": {"http://hub"}}, true},
		"an IPv6 address with the default port": {"[::1]:443", http.Header{"Origin": {"https://[::1]"}}, true},
		"another default port":                  {"hub:443", http.Header{"Origin": {"http://hub"}}, false},
		"another port":                          {"hub", http.Header{"Origin": {"https://hub:8443"}}, false},
		"another host":                          {"hub", http.Header{"Origin": {"https://evil"}}, false},
		"a host with the same start":            {"hub", http.Header{"Origin": {"https://hub.evil"}}, false},
		"a page without a host":                 {"hub", http.Header{"Origin": {"null"}}, false},
		"another host with a token": {
			"hub", http.Header{"Origin": {"https://evil"}, "Authorization": {"Bearer t"}}, true,
		},
		"another host with token and cookie": {
			"hub", http.Header{"Origin": {"https://evil"}, "Authorization": {"Bearer t"}, "Cookie": {"a=b"}}, false,
		},
		"another host with a cookie": {"hub", http.Header{"Origin": {"https://evil"}, "Cookie": {"a=b"}}, false},
		"another host with a password": {
			"hub", http.Header{"Origin": {"https://evil"}, "Authorization": {"Basic YTpi"}}, false,
		},
		"another host with a token as a subprotocol": {"hub", http.Header{
			"Origin": {"https://evil"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {bearerProtocol + "dG9rZW4", "v4.channel.k8s.io"},
		}, true},
	} {
		if got := MayOpen(&http.Request{Host: tt.host, Header: tt.header}); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}
