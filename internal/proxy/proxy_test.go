// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/test/testkit"
)

func TestRefusals(t *testing.T) {
	as := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	refused := func(t *testing.T, h *hubSide, path string, header http.Header) (*http.Response, string) {
		t.Helper()
		response, body := h.do(t, h.request(t, http.MethodGet, path, nil, header))
		if n := len(h.agent.all()); n > 0 {
			t.Errorf("%d requests arrived at the agent, want 0", n)
		}
		return response, body
	}
	for name, header := range map[string]http.Header{
		"no token":                    {"Authorization": nil},
		"a wrong token":               as("t-mallory"),
		"a cookie instead of a token": {"Authorization": nil, "Cookie": {"R_SESS=t-alice"}},
		"two Authorization headers":   {"Authorization": {"Bearer t-alice", "Bearer t-bob"}},
	} {
		t.Run(name+" is answered with 401 Status", func(t *testing.T) {
			h := newHubSide(t)
			response, body := refused(t, h, podsPath, header)
			wantStatus(t, response, body, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
			if response.Header.Get("WWW-Authenticate") != "Bearer" || h.members.calls() > 0 {
				t.Errorf("got challenge %q and %d requests for members, want a challenge and no request",
					response.Header.Get("WWW-Authenticate"), h.members.calls())
			}
		})
	}
	t.Run("a token in the query is a 401 Status", func(t *testing.T) {
		response, body := refused(t, newHubSide(t), podsPath+"?access_token=t-alice&token=t-alice",
			http.Header{"Authorization": nil})
		wantStatus(t, response, body, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	})
	t.Run("CVE-2022-41354, CVE-2024-36106: without the right, every cluster is the same 403", func(t *testing.T) {
		h := newHubSide(t)
		response, known := refused(t, h, podsPath, as("t-bob"))
		wantStatus(t, response, known, http.StatusForbidden, metav1.StatusReasonForbidden)
		response, unknown := refused(t, h, "/k8s/clusters/team-a/nope/api/v1/pods", as("t-bob"))
		wantStatus(t, response, unknown, http.StatusForbidden, metav1.StatusReasonForbidden)
		if strings.ReplaceAll(unknown, "nope", "prod") != known || h.members.calls() > 0 {
			t.Errorf("got %s for the known cluster,\n%s for the unknown cluster, and %d requests, want the same and none",
				known, unknown, h.members.calls())
		}
	})
	t.Run("an unknown cluster is a 404 Status", func(t *testing.T) {
		response, body := refused(t, newHubSide(t), "/k8s/clusters/team-a/nope/api", nil)
		status := wantStatus(t, response, body, http.StatusNotFound, metav1.StatusReasonNotFound,
			"team-a/nope", "kubectl get clusters")
		if status.Details == nil || status.Details.Name != "nope" || status.Details.Group != "cluster.drover.dev" {
			t.Errorf("got details %+v, want the requested Cluster", status.Details)
		}
	})
	t.Run("a disconnected cluster is a 503 with Retry-After and the time when it was last seen", func(t *testing.T) {
		h := newHubSide(t)
		seen := time.Now().Add(-20 * time.Second)
		h.members.fail(fmt.Errorf("find tunnel: %w", &NotConnectedError{LastSeen: seen}))
		response, body := refused(t, h, podsPath, nil)
		status := wantStatus(t, response, body, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"team-a/prod", "last seen "+seen.UTC().Format(time.RFC3339), "kubectl describe cluster")
		if response.Header.Get("Retry-After") != "1" || status.Details.RetryAfterSeconds != 1 {
			t.Errorf("got Retry-After %q and details %+v, want 1 s in both",
				response.Header.Get("Retry-After"), status.Details)
		}
	})
	t.Run("a cluster that has been gone for long is 503, and kubectl does not wait for it", func(t *testing.T) {
		h := newHubSide(t)
		h.members.fail(&NotConnectedError{LastSeen: time.Now().Add(-time.Hour)})
		response, body := refused(t, h, podsPath, nil)
		wantStatus(t, response, body, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "1h0m")
		if at, err := http.ParseTime(response.Header.Get("Retry-After")); err != nil || time.Until(at) <= 0 {
			t.Errorf("got Retry-After %q, want a date in the future", response.Header.Get("Retry-After"))
		}
	})
	t.Run("discovery lets a kubectl with an empty cache wait only for a moment", func(t *testing.T) {
		for name, tt := range map[string]struct {
			lastSeen time.Time
			waits    bool
		}{
			"just lost":  {time.Now().Add(-3 * time.Second), true},
			"away":       {time.Now().Add(-20 * time.Second), false},
			"never seen": {time.Time{}, false},
		} {
			for _, path := range []string{"/k8s/clusters/team-a/prod/api", "/k8s/clusters/team-a/prod/apis"} {
				h := newHubSide(t)
				h.members.fail(&NotConnectedError{LastSeen: tt.lastSeen})
				response, body := refused(t, h, path, nil)
				wantStatus(t, response, body, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
					"is not connected to the hub")
				if after := response.Header.Get("Retry-After"); (after == "1") != tt.waits || after == "" {
					t.Errorf("%s, %s: got Retry-After %q, want 1 only for a short wait", name, path, after)
				}
			}
		}
	})
	t.Run("a cluster that was never seen is 503 with Retry-After", func(t *testing.T) {
		h := newHubSide(t)
		h.members.fail(&NotConnectedError{})
		response, body := refused(t, h, podsPath, nil)
		wantStatus(t, response, body, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not known")
		if response.Header.Get("Retry-After") != "1" || strings.Contains(body, "0001-01-01") {
			t.Errorf("got Retry-After %q and %s, want 1 and no date", response.Header.Get("Retry-After"), body)
		}
	})
	for name, test := range map[string]struct {
		err    error
		code   int
		reason metav1.StatusReason
		logged bool
	}{
		"a tunnel that breaks is 502": {
			errors.New("stream reset"), http.StatusBadGateway, refusal.ReasonBadGateway, true,
		},
		"a tunnel that has just gone is 503": {
			&NotConnectedError{}, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, false,
		},
		"a cluster that was just deleted is 404": {
			ErrUnknownCluster, http.StatusNotFound, metav1.StatusReasonNotFound, false,
		},
		"a member that takes too long is 504": {
			fmt.Errorf("send: %w", os.ErrDeadlineExceeded), http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout, true,
		},
		"a deadline of the tunnel is 504": {
			context.DeadlineExceeded, http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout, true,
		},
	} {
		t.Run(name+" Status if nothing was answered yet", func(t *testing.T) {
			h := newHubSide(t)
			h.members.transport = roundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, test.err })
			response, body := refused(t, h, podsPath, nil)
			wantStatus(t, response, body, test.code, test.reason, "team-a/prod")
			if logged := h.log.text() != ""; logged != test.logged || strings.Contains(body, "stream reset") ||
				strings.Contains(h.log.text(), "t-alice") {
				t.Errorf("got log %q and response %s, want the cause only in the log, and the token nowhere",
					h.log.text(), body)
			}
		})
	}
	t.Run("a refused discovery has a warning with the reason, because kubectl drops its Status", func(t *testing.T) {
		h := newHubSide(t)
		for _, path := range []string{"/api", "/apis"} {
			response, body := refused(t, h, "/k8s/clusters/team-a/nope"+path, nil)
			status := wantStatus(t, response, body, http.StatusNotFound, metav1.StatusReasonNotFound)
			warnings, errs := utilnet.ParseWarningHeaders(response.Header["Warning"])
			if len(errs) > 0 || len(warnings) != 1 || warnings[0].Code != 299 || warnings[0].Text != status.Message {
				t.Errorf("got warnings %+v, %v, want one: 299 %q",
					warnings, errs, status.Message)
			}
		}
		if response, _ := refused(t, h, "/k8s/clusters/team-a/nope/api/v1/pods", nil); response.Header.Get("Warning") != "" {
			t.Errorf("got warning %q, want none where kubectl prints the Status",
				response.Header.Get("Warning"))
		}
	})
	t.Run("an authorizer that is unavailable is 503 and grants nothing", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) {
			o.Authorize = func(context.Context, identity.Identity, types.NamespacedName) error {
				return refusal.Unavailable("the hub could not find out what you may do").Because(errors.New("etcd is slow"))
			}
		})
		response, body := refused(t, h, podsPath, nil)
		wantStatus(t, response, body, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		if h.members.calls() > 0 || !strings.Contains(h.log.text(), "etcd is slow") || strings.Contains(body, "etcd") {
			t.Errorf("got %d requests for members, log %q and response %s, want none, and the cause only in the log",
				h.members.calls(), h.log.text(), body)
		}
	})
	t.Run("an error that is not a refusal is 500 and tells the caller nothing", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) {
			o.Authorize = func(context.Context, identity.Identity, types.NamespacedName) error {
				return errors.New("secret detail")
			}
		})
		response, body := refused(t, h, podsPath, nil)
		wantStatus(t, response, body, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		if strings.Contains(body, "secret detail") || !strings.Contains(h.log.text(), "secret detail") {
			t.Errorf("got log %q and response %s, want the detail only in the log", h.log.text(), body)
		}
	})
}

func TestClientsUnderstandRefusals(t *testing.T) {
	h := newHubSide(t)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for name, test := range map[string]struct {
		cluster, token string
		is             func(error) bool
	}{
		"401": {"prod", "t-mallory", apierrors.IsUnauthorized},
		"403": {"prod", "t-bob", apierrors.IsForbidden},
		"404": {"nope", "t-alice", apierrors.IsNotFound},
		"503": {"prod", "t-alice", apierrors.IsServiceUnavailable},
	} {
		t.Run("client-go understands a "+name+" in every encoding that it asks for", func(t *testing.T) {
			h.members.fail(nil)
			if name == "503" {
				h.members.fail(&NotConnectedError{LastSeen: time.Now().Add(-time.Hour)})
			}
			client, err := rest.RESTClientFor(&rest.Config{
				Host: h.URL + "/k8s/clusters/team-a/" + test.cluster, APIPath: "/api", BearerToken: test.token,
				ContentConfig: rest.ContentConfig{
					GroupVersion:         &schema.GroupVersion{Version: "v1"},
					NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
					ContentType:          "application/vnd.kubernetes.protobuf",
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			watch := testkit.StartStopwatch()
			err = client.Get().Resource("pods").Do(t.Context()).Error()
			if took := watch.Took(); !test.is(err) || took > 5*time.Second {
				t.Errorf("got %[2]v after %[1]s, want the refusal at once", took, err)
			}
		})
	}
}

func TestBodyLimit(t *testing.T) {
	small := func(o *Options) { o.Limits.Body = 1000 }
	t.Run("CVE-2024-58259: a body that announces too large a length is 413, unread and unsent", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) { o.Limits.Body = 100_000 })
		response, body := h.do(t, h.request(t, http.MethodPost, podsPath, bytes.NewReader(make([]byte, 100_001)), nil))
		wantStatus(t, response, body, http.StatusRequestEntityTooLarge,
			metav1.StatusReasonRequestEntityTooLarge, "100000")
		if len(h.agent.all()) > 0 {
			t.Error("the request was sent, want it refused")
		}
	})
	t.Run("CVE-2024-58259: a body without a length is 413 when it gets too large", func(t *testing.T) {
		h := newHubSide(t, small)
		h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); err == nil {
				t.Errorf("a complete body of %d bytes arrived, want it cut off", n)
			}
			panic(http.ErrAbortHandler)
		})
		endless := io.MultiReader(bytes.NewReader(make([]byte, 900)), bytes.NewReader(make([]byte, 101)))
		response, body := h.do(t, h.request(t, http.MethodPost, podsPath, endless, nil))
		wantStatus(t, response, body, http.StatusRequestEntityTooLarge,
			metav1.StatusReasonRequestEntityTooLarge, "1000")
	})
	t.Run("a body as large as the limit passes", func(t *testing.T) {
		h := newHubSide(t, small)
		for _, body := range []io.Reader{
			bytes.NewReader(make([]byte, 1000)), io.MultiReader(bytes.NewReader(make([]byte, 1000))),
		} {
			response, answer := h.do(t, h.request(t, http.MethodPost, podsPath, body, nil))
			if response.StatusCode != http.StatusOK {
				t.Errorf("got %d %s, want 200", response.StatusCode, answer)
			}
		}
	})
	t.Run("the default is 16 MiB", func(t *testing.T) {
		want := Limits{Body: 16 << 20, Stall: 3 * time.Minute, Answer: 70 * time.Second, Look: 30 * time.Second}
		if h := newHubSide(t); h.handler.limits != want {
			t.Errorf("got limits %+v, want the documented defaults", h.handler.limits)
		}
	})
}

func TestNew(t *testing.T) {
	whole := testOptions((&fakeMembers{}).Transport, (&logLines{}).logger())
	for name, change := range map[string]func(*Options){
		"an authenticator":      func(o *Options) { o.Authenticate = nil },
		"an authorizer":         func(o *Options) { o.Authorize = nil },
		"transport":             func(o *Options) { o.Transport = nil },
		"a hub":                 func(o *Options) { o.Hub = nil },
		"a hub with an address": func(o *Options) { o.Hub = &rest.Config{Host: "http://[::1"} },
		"a readable CA": func(o *Options) {
			o.Hub = &rest.Config{Host: "https://h", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}}
		},
	} {
		t.Run("New fails without "+name, func(t *testing.T) {
			options := whole
			change(&options)
			if h, err := New(options); err == nil {
				t.Errorf("got %+v, want an error", h)
			}
		})
	}
}

func TestLocal(t *testing.T) {
	// This is the manager's configuration with every kind of credential.
	withCredentials := func(o *Options) {
		o.Hub = rest.CopyConfig(o.Hub)
		o.Hub.BearerToken = "t-manager"
		o.Hub.Username, o.Hub.Password = "manager", "p-manager"
		o.Hub.Impersonate = rest.ImpersonationConfig{UserName: "system:admin"}
		o.Hub.UserAgent = "manager"
		o.Hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.Header.Set("Authorization", "Bearer t-manager")
				return next.RoundTrip(r)
			})
		})
	}
	t.Run("CVE-2023-48312: the hub's API server gets only the caller's token", func(t *testing.T) {
		h := newHubSide(t, withCredentials)
		r := h.request(t, http.MethodPost, "/k8s/local/apis/x/v1/a%2Fb?watch=true", strings.NewReader("{}"),
			http.Header{
				"Cookie": {"a=b"}, "X-Remote-User": {"admin"}, "User-Agent": {"kubectl"}, "Accept-Encoding": {"identity"},
			})
		if response, body := h.do(t, r); response.StatusCode != http.StatusOK {
			t.Fatalf("got %d %s, want 200", response.StatusCode, body)
		}
		got := h.hub.only(t)
		if got.RequestURI != "/apis/x/v1/a%2Fb?watch=true" ||
			got.Header.Get("Authorization") != "Bearer t-alice" || len(got.Header["Authorization"]) != 1 {
			t.Errorf("got %s with header %v, want the unchanged path and alice's token once",
				got.RequestURI, got.Header)
		}
		for _, name := range []string{"Cookie", "X-Remote-User", "Impersonate-User"} {
			if got.Header.Get(name) != "" {
				t.Errorf("got the header %s, want it removed", name)
			}
		}
		if h.members.calls()+len(h.agent.all()) > 0 {
			t.Error("a member was asked, want no request")
		}
	})
	t.Run("the API server decides about the user that the caller wants to impersonate", func(t *testing.T) {
		h := newHubSide(t, withCredentials)
		h.do(t, h.request(t, http.MethodGet, "/k8s/local/api", nil,
			http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "b"}}))
		got := h.hub.only(t).Header
		if got.Get("Impersonate-User") != "bob" || len(got["Impersonate-Group"]) != 2 ||
			got.Get("Authorization") != "Bearer t-alice" {
			t.Errorf("got header %v, want alice's token and bob's impersonation headers", got)
		}
	})
	t.Run("a token in the subprotocols of a WebSocket becomes the Authorization header", func(t *testing.T) {
		h := newHubSide(t, withCredentials)
		h.do(t, h.request(t, http.MethodGet, "/k8s/local/api", nil, http.Header{
			"Authorization": nil, "Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.dC1hbGljZQ"},
		}))
		got := h.hub.only(t).Header
		if got.Get("Authorization") != "Bearer t-alice" || got.Get("Sec-Websocket-Protocol") != "v5.channel.k8s.io" {
			t.Errorf("got header %v, want the token in Authorization and only the protocol in Sec-Websocket-Protocol", got)
		}
	})
	t.Run("CVE-2022-21953: a user of a member gets the 403 of the hub's API server", func(t *testing.T) {
		h := newHubSide(t, withCredentials)
		h.hub.answerWith(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer t-alice" && r.Header.Get("Impersonate-User") == "" {
				refusal.Write(w, refusal.Forbidden(`User "alice" cannot create resource "pods/exec"`))
			}
		})
		r := h.request(t, http.MethodPost, "/k8s/local/api/v1/namespaces/drover-system/pods/manager/exec?command=sh", nil,
			http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}})
		response, body := h.do(t, r)
		wantStatus(t, response, body, http.StatusForbidden, metav1.StatusReasonForbidden)
	})
	t.Run("an unknown caller is 401 before the API server is asked", func(t *testing.T) {
		h := newHubSide(t, withCredentials)
		response, body := h.do(t, h.request(t, http.MethodGet, "/k8s/local/api", nil,
			http.Header{"Authorization": nil}))
		wantStatus(t, response, body, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		if len(h.hub.all()) > 0 {
			t.Error("the API server was asked, want no request")
		}
	})
	t.Run("an API server that is down is 502", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) { o.Hub = &rest.Config{Host: "http://127.0.0.1:1"} })
		response, body := h.do(t, h.request(t, http.MethodGet, "/k8s/local/api", nil, nil))
		wantStatus(t, response, body, http.StatusBadGateway, refusal.ReasonBadGateway, "hub's API server")
	})
	t.Run("an API server behind a path prefix is reached behind it", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) { o.Hub.Host += "/prefix/" })
		h.do(t, h.request(t, http.MethodGet, "/k8s/local/api/v1/a%2Fb", nil, nil))
		h.do(t, h.request(t, http.MethodGet, "/k8s/local", nil, nil))
		all := h.hub.all()
		if len(all) != 2 || all[0].RequestURI != "/prefix/api/v1/a%2Fb" || all[1].RequestURI != "/prefix/" {
			t.Errorf("got %v, want both paths behind /prefix", all)
		}
	})
}

// BenchmarkProxy measures the cost of the proxy itself for a GET of a small object, without network, authentication and
// review. Run it with -benchmem -count 10 and compare the results with benchstat.
func BenchmarkProxy(b *testing.B) {
	id := mustIdentity(b)
	body := bytes.Repeat([]byte("a"), 1000)
	members := &fakeMembers{transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK,
			Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: 1000,
			Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
	})}
	options := testOptions(members.Transport, (&logLines{}).logger())
	options.Authenticate = func(*http.Request) (identity.Identity, error) { return id, nil }
	handler, err := New(options)
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, podsPath, nil)
	r.URL = parseURL(b, podsPath)
	r.Header = http.Header{
		"Authorization": {"Bearer t-alice"}, "Accept": {"application/json"}, "User-Agent": {"kubectl"},
		"Accept-Encoding": {"gzip"},
	}
	b.ReportAllocs()
	for b.Loop() {
		members.asked = nil
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
}
