// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestLatest(t *testing.T) {
	for name, tc := range map[string]struct {
		code      int
		locations []string
		version   string
		message   string
	}{
		"a redirection to a release": {302,
			[]string{"https://github.com/k3s-io/k3s/releases/tag/v1.36.3+k3s1"}, "v1.36.3+k3s1", ""},
		"one with the plus encoded": {302,
			[]string{"https://github.com/k3s-io/k3s/releases/tag/v1.36.3%2Bk3s1"}, "v1.36.3+k3s1", ""},
		"a relative one":                     {303, []string{"/releases/v2"}, "v2", ""},
		"one to itself":                      {302, []string{"/channels/v1.36"}, "", "to itself"},
		"one to itself at https":             {308, []string{"https://example.org/channels/v1.36"}, "", "to itself"},
		"one to the version of its own name": {302, []string{"/releases/v1.36"}, "v1.36", ""},
		"one to a page to log in at": {302, []string{"https://sso.example.org/login?back=v1"}, "",
			"not a version"},
		"one that is no URL": {302, []string{"https://[v1"}, "", "not a URL"},
		"one that is longer than all headers may be": {302, []string{"/" + strings.Repeat("x/", maxHeader) + "v2"}, "",
			"cannot be reached"},
		"307":                                    {307, []string{"/v2?x=y#z"}, "v2", ""},
		"308":                                    {308, []string{"/v2"}, "v2", ""},
		"301 is kept by caches and is no answer": {301, []string{"/v2"}, "", "responds with 301"},
		"a page is no answer":                    {200, nil, "", "responds with 200"},
		"a page with a Location is none either":  {200, []string{"/v2"}, "", "responds with 200"},
		"nor is 304":                             {304, []string{"/v2"}, "", "responds with 304"},
		"an error is no answer":                  {500, nil, "", "responds with 500"},
		"a redirection to nowhere":               {302, nil, "", "0 Locations"},
		"a redirection to two places":            {302, []string{"/v1", "/v2"}, "", "2 Locations"},
		"one that ends in a slash":               {302, []string{"/releases/v2/"}, "", "not a version"},
		"one to the root":                        {302, []string{"https://example.org"}, "", "not a version"},
		"one to what is no version":              {302, []string{"/login here"}, "", "not a version"},
		"one with a slash that is hidden":        {302, []string{"/a%2F..%2Fb2"}, "b2", ""},
		"one that is too long": {302, []string{"/v" + strings.Repeat("1", maxVersion)}, "",
			"not a version"},
		"one to what no tag of an image can begin": {302, []string{"/-rm"}, "", "not a version"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" || r.Method != http.MethodGet {
					t.Error("more was sent than a GET")
				}
				for _, l := range tc.locations {
					w.Header().Add("Location", l)
				}
				w.WriteHeader(tc.code)
				if tc.code != http.StatusNotModified {
					_, _ = w.Write([]byte("/v3"))
				}
			}))
			defer server.Close()
			version, err := New(Anywhere).Latest(t.Context(), server.URL+"/channels/v1.36")
			if version != tc.version || (err != nil) != (tc.message != "") || err != nil &&
				!strings.Contains(err.Error(), tc.message) {
				t.Errorf("%q, %v; want %q, %q", version, err, tc.version, tc.message)
			}
			if err != nil && strings.Contains(err.Error(), server.URL) {
				t.Errorf("%v has the URL in it", err)
			}
		})
	}
	// CVE-2023-25163, CVE-2024-31216: an error repeats the credentials in an address.
	for name, channel := range map[string]string{
		"no URL":           "https://[",
		"another scheme":   "file:///etc/passwd",
		"with a password":  "https://a:b@example.org/channel",
		"without any host": "https:///channel",
	} {
		t.Run(name+" is not asked", func(t *testing.T) {
			if version, err := New(Anywhere).Latest(t.Context(), channel); err == nil || strings.Contains(err.Error(), "a:b") {
				t.Errorf("got %q, %v, want an error without the credentials", version, err)
			}
		})
	}
	t.Run("CVE-2021-36778, CVE-2025-54468: where an answer leads is not asked, and nothing that says who asks is sent",
		func(t *testing.T) {
			followed := false
			other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
			defer other.Close()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for key := range r.Header {
					if key != "User-Agent" && key != "Accept-Encoding" && key != "Connection" {
						t.Errorf("%s was sent", key)
					}
				}
				w.Header().Set("Set-Cookie", "a=b")
				http.Redirect(w, r, other.URL+"/v2", http.StatusFound)
			}))
			defer server.Close()
			asker := New(Anywhere)
			for range 2 {
				if version, err := asker.Latest(t.Context(), server.URL); version != "v2" || err != nil || followed {
					t.Errorf("%q, %v, followed: %v", version, err, followed)
				}
			}
		})
	t.Run("CVE-2024-58259: a header without end is not read to its end", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/"+strings.Repeat("v", 2*maxHeader))
			w.WriteHeader(http.StatusFound)
		}))
		defer server.Close()
		if version, err := New(Anywhere).Latest(t.Context(), server.URL); err == nil || len(err.Error()) > 200 {
			t.Errorf("got %q, %v, want an error of at most 200 bytes", version, err)
		}
	})
	t.Run("CVE-2019-14435, CVE-2026-44936, CVE-2020-8555, CVE-2022-39383, CVE-2025-13281: a server on this machine is "+
		"not connected to, under whatever name", func(t *testing.T) {
		asked := false
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
		defer server.Close()
		for _, host := range []string{"127.0.0.1", "localhost"} {
			for _, reach := range []Reach{Public, Private} {
				_, err := New(reach).Latest(t.Context(), strings.Replace(server.URL, "127.0.0.1", host, 1))
				if !errors.Is(err, ErrAddress) || asked ||
					strings.Contains(err.Error(), "manager's configuration") != (reach == Public) {
					t.Errorf("%s, reach %d: %v, asked: %v", host, reach, err, asked)
				}
			}
		}
	})
}

// CVE-2019-14435, CVE-2026-44936.
func TestServersThatAnswerBadly(t *testing.T) {
	for name, tt := range map[string]struct {
		serve   func(net.Conn)
		message string
	}{
		"one that speaks no HTTP": {func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n") },
			"cannot be reached"},
		"one that hangs up":                  {func(net.Conn) {}, "cannot be reached"},
		"one that sends headers without end": {endless, "cannot be reached"},
		"one that sends half an answer and waits": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: /v2\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, "not within"},
		"one whose body never ends is not waited for": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: /v2\r\nTransfer-Encoding: chunked\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // ten seconds pass at once
				here, there := net.Pipe()
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer there.Close()
					_, _ = http.ReadRequest(bufio.NewReader(there))
					tt.serve(there)
				}()
				a := New(Anywhere)
				a.direct.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
					return here,
						nil
				}
				version, err := a.Latest(t.Context(), "http://example.org/channel")
				if tt.message == "" && (version != "v2" || err != nil) || tt.message != "" &&
					(err == nil || !strings.Contains(err.Error(), tt.message)) {
					t.Errorf("got %q, %v, want v2, or the error of this case", version, err)
				}
				<-done
			})
		})
	}
}

func endless(c net.Conn) {
	_, err := io.WriteString(c, "HTTP/1.1 302 Found\r\n")
	for err == nil {
		_, err = io.WriteString(c, "X: y\r\n")
	}
}

// TestDialedAddressOfANameIsChecked checks that the dialer looks a name up only once, because an earlier lookup
// could have another result.
func TestDialedAddressOfANameIsChecked(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	resolver := nameserver(t, "198.51.100.1", "127.0.0.1")
	if checked, err := resolver.LookupHost(t.Context(), "channel.example.org"); err != nil ||
		!slices.Equal(checked, []string{"198.51.100.1"}) {
		t.Fatalf("looked up %v, %v", checked, err)
	}
	a, guard := New(Public), Public.dialer()
	guard.Resolver = resolver
	a.direct.(*http.Transport).DialContext = guard.DialContext
	_, err := a.Latest(t.Context(), strings.Replace(server.URL, "127.0.0.1", "channel.example.org", 1))
	if !errors.Is(err, ErrAddress) || asked {
		t.Errorf("%v, asked: %v", err, asked)
	}
}

// nameserver returns a resolver that answers each question with the next IPv4 address, and repeats the last one.
func nameserver(t *testing.T, addresses ...string) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buffer := make([]byte, 1024); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(buffer[:n]); err != nil {
				t.Error(err)
				return
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{
						A: netip.MustParseAddr(addresses[0]).As4()},
				}}
				addresses = addresses[min(1, len(addresses)-1):]
			}
			packet, err := m.Pack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.WriteTo(packet, from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func TestReach(t *testing.T) {
	for address, from := range map[string]Reach{
		"140.82.121.4": Public, "2606:4700::1": Public, "::ffff:140.82.121.4": Public,
		"10.0.0.1": Private, "172.16.0.1": Private, "192.168.1.1": Private, "fd00::1": Private, "100.64.0.1": Private,
		"::ffff:10.0.0.1": Private,
		"127.0.0.1":       Anywhere, "::1": Anywhere, "169.254.169.254": Anywhere, "fe80::1": Anywhere, "0.0.0.0": Anywhere,
		"::": Anywhere, "0.1.2.3": Anywhere,
		"224.0.0.1": Anywhere, "255.255.255.255": Anywhere, "::ffff:127.0.0.1": Anywhere, "64:ff9b::a9fe:a9fe": Anywhere,
		"2002:7f00:1::": Anywhere,
		"fd00:ec2::254": Anywhere, "fd20:ce::254": Anywhere, "100.100.100.200": Anywhere, "168.63.129.16": Anywhere,
		"::ffff:0:7f00:1": Anywhere,
		"100.100.100.201": Private, "fd00:ec3::1": Private, "168.63.129.17": Public, "192.0.0.192": Anywhere,
		"198.18.0.1": Anywhere, "240.0.0.1": Anywhere, "::7f00:1": Anywhere, "2001:0:1::1": Anywhere, "fec0::1": Anywhere,
		"2001:db9::1": Public,
	} {
		for _, reach := range []Reach{Public, Private, Anywhere} {
			if got, want := reach.Includes(netip.MustParseAddr(address)), reach >= from; got != want {
				t.Errorf("reach %d includes %s: %v, want %v", reach, address, got, want)
			}
		}
	}
}

func TestPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer, fault := 0, "v1", error(nil)
		p := NewPoller(func(context.Context, string) (string, error) {
			asked++
			return answer, fault
		}, time.Now)
		polled := 0
		p.OnPolled(func(string) { polled++ })
		if got := p.Result("team", "a"); got.Asked || asked > 0 {
			t.Fatalf("asked before the start: %+v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.Start(ctx)
		}()
		see := func(version string, failed bool, questions int) {
			t.Helper()
			p.Result("team", "a")
			synctest.Wait()
			if got := p.Result("team", "a"); got.Version != version || (got.Err != nil) != failed || asked != questions {
				t.Errorf("%+v after %d questions; want %s after %d", got, asked, version, questions)
			}
		}
		synctest.Wait()
		see("v1", false, 1)
		see("v1", false, 1)
		answer = "v2"
		time.Sleep(Interval * 12 / 10)
		see("v2", false, 2)
		answer, fault = "", errors.New("down")
		time.Sleep(Interval * 12 / 10)
		see("v2", true, 3) // the last version stays
		time.Sleep(firstRetry * 12 / 10)
		see("v2", true, 4) // asked again sooner
		answer, fault = "v3", nil
		time.Sleep(2 * firstRetry * 12 / 10)
		see("v3", false, 5)
		if polled != 6 { // once at the start, for a request from before
			t.Errorf("f was called %d times, want 6", polled)
		}
		cancel()
		<-ended
		time.Sleep(Interval * 2)
		see("v3", false, 5)
	})
}

func TestSlowChannelsOfAWorkspaceDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answered := map[string]int{}, make(chan struct{})
		var mu sync.Mutex
		p := NewPoller(func(_ context.Context, channel string) (string, error) {
			mu.Lock()
			asked[channel]++
			mu.Unlock()
			if strings.HasPrefix(channel, "slow") {
				<-answered
			}
			return "v1", nil
		}, time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.Start(ctx)
		}()
		synctest.Wait()
		for i := range 3 * maxRequests {
			p.Result("attacker", fmt.Sprintf("slow-%d", i))
		}
		synctest.Wait()
		p.Result("attacker", "shared") // this request waits behind the attacker's own, but Result for the others does not
		synctest.Wait()
		if len(asked) != maxOwn {
			t.Errorf("%v are asked for one workspace, want %d of them", asked, maxOwn)
		}
		p.Result("team", "own")
		p.Result("team", "shared")
		synctest.Wait()
		for _, channel := range []string{"own", "shared"} {
			if got := p.Result("team", channel); got.Version != "v1" {
				t.Errorf("%s is %+v while channels of another workspace are slow, want v1", channel, got)
			}
		}
		close(answered)
		synctest.Wait()
		if len(asked) != 3*maxRequests+2 || asked["shared"] != 1 || len(p.own) != 0 {
			t.Errorf("asked are %v, and slots are kept for %d workspaces, want each once and none", asked, len(p.own))
		}
		cancel()
		<-ended
	})
}

// FuzzVersionOf checks that a channel, which is not trusted, can only return versions that are valid as the tag of an
// image.
func FuzzVersionOf(f *testing.F) {
	for _, location := range []string{"https://example.org/releases/tag/v1.36.3+k3s1", "/a%2F..%2Fb", "..", "/v1%00",
		"//[", "/é"} {
		f.Add(location)
	}
	f.Fuzz(func(t *testing.T, location string) {
		version, err := versionOf(&url.URL{Scheme: "https", Host: "example.org", Path: "/channel"}, []string{location})
		if err == nil && (len(version) > maxVersion || strings.ContainsAny(version, "/ \x00\n:@$") ||
			strings.HasPrefix(version, "-") || version == "") {
			t.Errorf("%q leads to %q", location, version)
		}
		if err != nil && location != "" && len(location) > 8 && strings.Contains(err.Error(), location) {
			t.Errorf("the error quotes %q", location)
		}
	})
}

// TestMissingNameGetsTheSameRefusalAsAnInternalAddress checks that a user who chooses URLs cannot learn which
// names exist in the hub's network.
func TestMissingNameGetsTheSameRefusalAsAnInternalAddress(t *testing.T) {
	for _, reach := range []Reach{Public, Private} {
		c := New(reach)
		inside, none := c.reason(reach.refusal()), c.reason(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host",
			IsNotFound: true}})
		if inside.Error() != none.Error() {
			t.Errorf("reach %d: %q and %q, want the same for both", reach, inside, none)
		}
		if down := c.reason(&net.DNSError{Err: "server misbehaving", IsTemporary: true}); down.Error() == none.Error() {
			t.Errorf("reach %d: a resolver that is down is %q, want that it says so", reach, down)
		}
	}
}
