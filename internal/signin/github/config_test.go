// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"testing"
)

// bomb is 64 MiB of spaces, compressed.
func bomb() []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for range 1 << 10 {
		_, _ = w.Write(bytes.Repeat([]byte(" "), 64<<10))
	}
	_ = w.Close()
	return b.Bytes()
}

func TestAddressesOfGitHubs(t *testing.T) {
	for configured, want := range map[string][2]string{
		"":                                {"https://github.com", "https://api.github.com"},
		"https://github.com":              {"https://github.com", "https://api.github.com"},
		"https://GitHub.com/":             {"https://github.com", "https://api.github.com"},
		"https://acme.ghe.com":            {"https://acme.ghe.com", "https://api.acme.ghe.com"},
		"https://github.example.com":      {"https://github.example.com", "https://github.example.com/api/v3"},
		"https://github.example.com:8443": {"https://github.example.com:8443", "https://github.example.com:8443/api/v3"},
	} {
		if base, api, err := addresses(configured); err != nil || base != want[0] || api != want[1] {
			t.Errorf("%q is %q and %q (%v)", configured, base, api, err)
		}
	}
	for _, configured := range []string{"http://github.example.com", "github.example.com", "https://", "https://:443",
		"https://u:p@github.example.com", "https://github.example.com/api/v3", "https://github.example.com?",
		"https://github.example.com?a=b",
		"https://github.example.com#a", "https://api.github.com", "https://www.github.com", "https://a b", "https:github.com", "ftp://github.com"} {
		if base, api, err := addresses(configured); err == nil {
			t.Errorf("%q is accepted as %q and %q, want an error", configured, base, api)
		} else if strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   string
	}{
		"no client ID":                     {Config{ClientSecret: "s", AnyUser: true}, "client ID"},
		"no client secret":                 {Config{ClientID: "i", AnyUser: true}, "client secret"},
		"a secret with a line break":       {Config{ClientID: "i", ClientSecret: "s\n", AnyUser: true}, "line break"},
		"everyone in the world by mistake": {Config{ClientID: "i", ClientSecret: "s"}, "no organization"},
		"everyone and an organization": {
			Config{ClientID: "i", ClientSecret: "s", AnyUser: true, Organizations: []string{"acme"}}, "choose one",
		},
		"an organization with a slash": {
			Config{ClientID: "i", ClientSecret: "s", Organizations: []string{"acme/web"}}, "not a name",
		},
		"a look-alike": {
			Config{ClientID: "i", ClientSecret: "s", Organizations: []string{"аcme"}}, "not a name",
		},
		"a team without its organization": {
			Config{ClientID: "i", ClientSecret: "s", AnyUser: true, Teams: []string{"web"}}, "not a name",
		},
		"a team with two slashes": {
			Config{ClientID: "i", ClientSecret: "s", AnyUser: true, Teams: []string{"a/b/c"}}, "not a name",
		},
		"a team of another organization": {
			Config{ClientID: "i", ClientSecret: "s", Organizations: []string{"acme"}, Teams: []string{"other/web"}},
			"may not sign in",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNextPageIsReadFromTheLinkHeader(t *testing.T) {
	for link, want := range map[string]struct {
		page    int
		follows bool
	}{
		"": {},
		`<https://api.github.com/user/teams?per_page=100&page=2>; rel="next", <https://api.github.com/user/teams?page=9>; rel="last"`: {2, true},
		`<https://api.github.com/user/teams?page=1>; rel="prev", <https://api.github.com/user/teams?page=3>; rel="next"`:              {3, true},
		`<https://api.github.com/user/teams?page=1>; rel="first"`:                                                                     {},
		`<https://x/?page=2>; rel=next`:                       {2, true},
		`<https://x/?page=2>; title="a"; REL="last NEXT"`:     {2, true},
		`<https://x/?a=1,2&page=2>; rel="next"`:               {2, true},
		`<https://x/?after=abc>; rel="next"`:                  {0, true},
		`<https://x/?page=-1>; rel="next"`:                    {0, true},
		`<https://x/?page=99999999999999999999>; rel="next"`:  {0, true},
		`<%zz?page=2>; rel="next"`:                            {0, true},
		`<https://x/?page=2`:                                  {},
		`; rel="next"`:                                        {},
		`<https://x/?page=2>; rel="next-archive"`:             {},
		strings.Repeat("<", maxLink+1):                        {0, true},
		strings.Repeat(`<a>,`, 100) + `<?page=4>; rel="next"`: {4, true},
	} {
		if page, follows := nextPage(http.Header{"Link": {link}}); page != want.page || follows != want.follows {
			t.Errorf("%.80q is page %d, %v", link, page, follows)
		}
	}
}

func FuzzNextPage(f *testing.F) {
	f.Add(`<https://api.github.com/user/teams?per_page=100&page=2>; rel="next", <https://api.github.com/user/teams?page=9>; rel="last"`)
	f.Add(`<a>;rel=next`)
	f.Add(`<<>>,;=`)
	f.Fuzz(func(t *testing.T, link string) {
		page, follows := nextPage(http.Header{"Link": {link}})
		if page < 0 || page > maxPages+1 || page != 0 && !follows {
			t.Errorf("page %d, %v", page, follows)
		}
		if follows && len(link) <= maxLink && !strings.Contains(strings.ToLower(link), "next") {
			t.Error("a page follows without a link to it, want the last page")
		}
	})
}
