// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/agent/kube"
)

// Addresses for documentation. No test reaches them: connections are recorded and refused. They are not loopback
// addresses, because a proxy is never used for those.
const (
	apiServer = "192.0.2.1:6443"
	proxy     = "192.0.2.9:3128"
)

// TestMain sets the proxies before they are read, which happens only once.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"} {
		_ = os.Setenv(name, "http://"+proxy)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		_ = os.Unsetenv(name)
	}
	m.Run()
}

// recorded makes a config record all connections and refuse them.
func recorded(cfg *rest.Config) (*rest.Config, *[]string) {
	var dialled []string
	cfg.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("no connection in this test")
	}
	return cfg, &dialled
}

// TestAPIServerIsReachedWithoutProxy checks that the proxies of the environment are used only for the hub. A request
// to the API server carries the agent's token.
func TestAPIServerIsReachedWithoutProxy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"https://` + apiServer +
		`"}}],"users":[{"name":"u","user":{"token":"agents-own"}}],` +
		`"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func() *rest.Config {
		cfg, err := kube.Config(path, "test")
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	ask := func(cfg *rest.Config) {
		client, err := kube.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.ClusterUID(t.Context())
	}
	for name, tc := range map[string]struct {
		ask  func(*rest.Config)
		want string
	}{
		"the agent's own requests": {ask, apiServer},
		"requests that it forwards": {func(cfg *rest.Config) {
			transport, err := forward.Transport(cfg)
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+apiServer+"/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			if response, err := transport.RoundTrip(request); err == nil {
				_ = response.Body.Close()
			}
		}, apiServer},
		"without that the environment decides, which shows that the test works": {
			func(cfg *rest.Config) { cfg.Proxy = nil; ask(cfg) }, proxy},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, dialled := recorded(config())
			tc.ask(cfg)
			if len(*dialled) == 0 {
				t.Fatal("nothing was asked")
			}
			for _, address := range *dialled {
				if address != tc.want {
					t.Errorf("dialled %s, want %s", address, tc.want)
				}
			}
		})
	}
}
