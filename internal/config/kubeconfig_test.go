// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
)

// TestMain sets a proxy before the environment is first read, because Go reads it only once.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy"} {
		_ = os.Setenv(name, "http://192.0.2.9:3128")
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		_ = os.Unsetenv(name)
	}
	m.Run()
}

func TestHubAPIServerIsReachedWithoutProxy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1:6443"}}],"users":[{"name":"u","user":{"token":"managers-own"}}],` +
		`"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	cfg, err := kubeconfig("drover-manager/test")
	if err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]*rest.Config{
		"192.0.2.1:6443": cfg,
		"192.0.2.9:3128": {Host: cfg.Host}, // shows that the test detects a proxy
	} {
		var dialled string
		cfg.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = address
			return nil, errors.New("no connection in this test")
		}
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
		}
		if dialled != want {
			t.Errorf("dialled %s, want %s", dialled, want)
		}
	}
}
