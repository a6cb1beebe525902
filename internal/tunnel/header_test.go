// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// seen answers with the header that arrived, one field per line, sorted.
func seen(w http.ResponseWriter, r *http.Request) {
	_ = r.Header.Write(w)
}

func TestHeadersThatDoNotTravel(t *testing.T) {
	tests := []struct {
		name   string
		header http.Header
		want   string // lines that arrive in addition to User-Agent
	}{
		{"private headers cannot be smuggled in",
			http.Header{"Drover-Tunnel-Upgrade": {"SPDY/3.1"}, "Drover-Tunnel-Method": {"GET"}}, ""},
		{"private headers in unusual case cannot be smuggled in",
			http.Header{"drover-tunnel-upgrade": {"x"}, "DROVER-TUNNEL-METHOD": {"x"}, "dRoVer-Tunnel-New": {"x"}}, ""},
		{"hop-by-hop", http.Header{
			"Connection": {"keep-alive"}, "Keep-Alive": {"1"}, "Proxy-Connection": {"x"},
			"Transfer-Encoding": {"chunked"}, "Http2-Settings": {"x"},
		}, ""},
		{"Upgrade that Connection does not announce", http.Header{"Upgrade": {"websocket"}}, ""},
		{"Priority", http.Header{"Priority": {"u=0"}, "priority": {"u=1"}}, ""},
		{"TE other than trailers", http.Header{"Te": {"gzip"}}, ""},
		{"but TE: trailers travels", http.Header{"Te": {"gzip, trailers"}}, "Te: trailers\r\n"},
		{"and so does a field that Connection names: an identity must not vanish", http.Header{
			"Connection": {"Impersonate-User, close"}, "Impersonate-User": {"alice"},
		}, "Impersonate-User: alice\r\n"},
		{"and any other field",
			http.Header{"X-A": {"1", "2"}, "Authorization": {"x"}}, "Authorization: x\r\nX-A: 1\r\nX-A: 2\r\n"},
	}
	overEach(t, Config{}, http.HandlerFunc(seen), func(t *testing.T, p *pair) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := request(t, http.MethodPost, "/", nil)
				r.Header = test.header.Clone()
				r.Header["User-Agent"] = []string{""}
				response, err := p.session.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				got := strings.ReplaceAll(readAll(t, response), "Content-Length: 0\r\n", "")
				if got != test.want {
					t.Errorf("the header arrived as %q, want %q", got, test.want)
				}
				if fmt.Sprint(r.Header) == "" || len(r.Header) != len(test.header)+1 {
					t.Error("RoundTrip changed the caller's header")
				}
			})
		}
	})
}

func TestBadRequestsAndResponsesDoNotEndTheTunnel(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/close", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "ok")
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("a bug") })
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/invalid", func(w http.ResponseWriter, _ *http.Request) { w.Header()["X\n"] = []string{"a\x00b"} })
	mux.HandleFunc("/unread", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	tests := []struct {
		name, path string
		change     func(*http.Request)
	}{
		{"a request that says Connection: close", "/", func(r *http.Request) { r.Header.Set("Connection", "close") }},
		{"a request with Close set", "/", func(r *http.Request) { r.Close = true }},
		{"a response that says Connection: close", "/close", nil},
		{"a handler that panics", "/panic", nil},
		{"a handler that aborts", "/abort", nil},
		{"a response with an invalid header", "/invalid", nil},
		{"a request with an invalid header", "/", func(r *http.Request) { r.Header["X\n"] = []string{"\x00"} }},
		{"a request with an invalid host", "/", func(r *http.Request) { r.Host = "a b\n" }},
		{"a request with an absurd path", "/", func(r *http.Request) { r.URL.Opaque = "//x\x00y" }},
		{"a refused body", "/unread",
			func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))) }},
		{"a body shorter than it says", "/", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("short")), 100
		}},
		{"a method that does not exist", "/", func(r *http.Request) { r.Method = "BREW" }},
		{"a method that cannot exist", "/", func(r *http.Request) { r.Method = "A B" }},
	}
	overEach(t, Config{}, mux, func(t *testing.T, p *pair) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := request(t, http.MethodPost, test.path, nil)
				if test.change != nil {
					test.change(r)
				}
				if response, err := p.session.RoundTrip(r); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
				if got := p.get(t, "/"); got != "ok" {
					t.Errorf("got %q afterward, want the tunnel to continue", got)
				}
			})
		}
	})
}

func TestHeaderLimit(t *testing.T) {
	const limit, requestLimit = 64 << 10, 1 << 20
	field := func(size int) string { return strings.Repeat("x", size-len("X-Big")-headerOverhead) }
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.Header.Get("X-Big"))) })
	big := func(w http.ResponseWriter, r *http.Request) {
		size := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("size"), &size)
		w.Header().Set("X-Big", field(size))
	}
	mux.HandleFunc("/big", big)
	mux.HandleFunc("/groups",
		func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.Header["Impersonate-Group"])) })
	mux.HandleFunc("/many", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 100_000 {
			w.Header().Set(fmt.Sprintf("X-%d", i), "x")
		}
		w.Header().Set("X-Secret", "1")
		_, _ = io.WriteString(w, "this must not follow the 502")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		big(w, r)
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the client of a watch must not wait forever
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, r *http.Request) {
		big(w, r)
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	})
	mux.HandleFunc("/trailer", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "body")
		big(w, r)
		w.Header()[http.TrailerPrefix+"X-Big"] = w.Header()["X-Big"]
	})
	overEach(t, Config{}, mux, func(t *testing.T, p *pair) {
		t.Run("a request just within the limit passes", func(t *testing.T) {
			r := request(t, http.MethodGet, "/", nil)
			r.Header.Set("X-Big", field(requestLimit-len("/")-len("member")))
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := readAll(t, response), fmt.Sprint(len(r.Header.Get("X-Big"))); got != want {
				t.Errorf("%s bytes arrived, want %s", got, want)
			}
		})
		for _, size := range []int{requestLimit + 1, 2 << 20} {
			t.Run(fmt.Sprintf("a request header of %d bytes is refused by the hub's end", size), func(t *testing.T) {
				r := request(t, http.MethodGet, "/", nil)
				r.Header.Set("X-Big", field(size))
				_, err := p.session.RoundTrip(r)
				wantError(t, err, ErrHeaderTooLarge)
			})
		}
		t.Run("a request with a field for each of 2,000 groups passes", func(t *testing.T) {
			r := request(t, http.MethodGet, "/groups", nil)
			for n := range 2000 {
				r.Header["Impersonate-Group"] = append(r.Header["Impersonate-Group"], fmt.Sprintf("%060d", n))
			}
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, response); got != "2000" {
				t.Errorf("%s groups arrived, want 2000", got)
			}
		})
		t.Run("the path counts", func(t *testing.T) {
			_, err := p.session.RoundTrip(request(t, http.MethodGet, "/"+strings.Repeat("x", requestLimit), nil))
			wantError(t, err, ErrHeaderTooLarge)
		})
		for _, test := range []struct {
			name, path string
			want       int
		}{
			{"a response just within the limit passes", fmt.Sprint("/big?size=", limit), http.StatusOK},
			{"a response just above the limit becomes 502", fmt.Sprint("/big?size=", limit+1), http.StatusBadGateway},
			{"a response far above the limit becomes 502", "/big?size=1000000", http.StatusBadGateway},
			{"a response with very many fields becomes 502", "/many", http.StatusBadGateway},
			{"an endless response above the limit becomes 502 and ends", "/endless?size=1000000", http.StatusBadGateway},
			{"an informational response above the limit becomes 502", "/hints?size=1000000", http.StatusBadGateway},
		} {
			t.Run(test.name, func(t *testing.T) {
				response, err := p.session.RoundTrip(request(t, http.MethodGet, test.path, nil))
				if err != nil {
					t.Fatal(err)
				}
				body := readAll(t, response)
				if response.StatusCode != test.want || response.Header.Get("X-Secret") != "" ||
					strings.Contains(body, "this must not") {
					t.Errorf("got %s, %.200q, want %d without any of the response", response.Status, body, test.want)
				}
				if test.want == http.StatusBadGateway && !strings.Contains(body, "65536") {
					t.Errorf("got %q, want the limit in it", body)
				}
			})
		}
		t.Run("a trailer above the limit aborts only the response", func(t *testing.T) {
			response, err := p.session.RoundTrip(request(t, http.MethodGet, "/trailer?size=1000000", nil))
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if err == nil {
				t.Error("the response looks complete, want an error")
			}
		})
		t.Run("the tunnel continues", func(t *testing.T) { p.get(t, "/") })
	})
}
