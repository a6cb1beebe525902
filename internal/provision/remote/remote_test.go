// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/internal/release"
)

// kubeconfig returns a valid kubeconfig, after the change.
func kubeconfig(t testing.TB, change func(*api.Cluster, *api.AuthInfo)) []byte {
	t.Helper()
	cluster, user := &api.Cluster{Server: "https://prod.example.com:6443", CertificateAuthorityData: []byte("ca")}, &api.AuthInfo{Token: "hush-hush"}
	change(cluster, user)
	raw, err := clientcmd.Write(api.Config{
		Clusters: map[string]*api.Cluster{"c": cluster}, AuthInfos: map[string]*api.AuthInfo{"u": user}, Contexts: map[string]*api.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// CVE-2022-24817, CVE-2021-41254, CVE-2025-47282, CVE-2025-47283: a tenant's credential runs a program, or reads a
// file, in the controller.
func TestKubeconfigCannotRunProgramsOrReadFiles(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*api.Cluster, *api.AuthInfo)
		refused string
	}{
		"a token": {func(*api.Cluster, *api.AuthInfo) {}, ""},
		"a certificate": {func(_ *api.Cluster, u *api.AuthInfo) {
			u.ClientCertificateData, u.ClientKeyData = []byte("c"), []byte("k")
		}, ""},
		"a program": {func(_ *api.Cluster, u *api.AuthInfo) {
			u.Exec = &api.ExecConfig{Command: "/bin/sh", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: "Never"}
		}, "exec"},
		"an auth provider": {func(_ *api.Cluster, u *api.AuthInfo) { u.AuthProvider = &api.AuthProviderConfig{Name: "gcp"} }, "auth-provider"},
		"a token's file": {func(_ *api.Cluster, u *api.AuthInfo) {
			u.TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
		}, "tokenFile"},
		"a certificate file": {func(_ *api.Cluster, u *api.AuthInfo) { u.ClientCertificate = "/etc/x" }, "client-certificate"},
		"a key's file":       {func(_ *api.Cluster, u *api.AuthInfo) { u.ClientKey = "/etc/x" }, "client-key"},
		"another user":       {func(_ *api.Cluster, u *api.AuthInfo) { u.Impersonate = "root" }, "as"},
		"a CA's file":        {func(c *api.Cluster, _ *api.AuthInfo) { c.CertificateAuthority = "/etc/x" }, "certificate-authority"},
		"any server":         {func(c *api.Cluster, _ *api.AuthInfo) { c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil }, "insecure-skip-tls-verify"},
		"a proxy":            {func(c *api.Cluster, _ *api.AuthInfo) { c.ProxyURL = "http://10.0.0.1:3128" }, "proxy-url"},
		"no TLS":             {func(c *api.Cluster, _ *api.AuthInfo) { c.Server = "http://prod.example.com" }, "not an https URL"},
		"a user in the URL":  {func(c *api.Cluster, _ *api.AuthInfo) { c.Server = "https://a:b@prod.example.com" }, "not an https URL"},
	} {
		config, err := Config(kubeconfig(t, tt.change), release.Private)
		switch {
		case tt.refused == "" && (err != nil || config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || config.CAFile != ""):
			t.Errorf("%s: got %v, %+v, want it to be accepted", name, err, config)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: got %v, want %s", name, err, tt.refused)
		case err != nil && strings.Contains(err.Error(), "hush"):
			t.Errorf("%s: the error has a secret: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"no YAML": "no: [kubeconfig", "no kubeconfig": "[]", "a list in place of a name": "current-context: [x]",
		"an alias":          string(kubeconfig(t, func(*api.Cluster, *api.AuthInfo) {})) + "extensions: [&hush x, *hush]\n",
		"too many clusters": string(kubeconfig(t, func(*api.Cluster, *api.AuthInfo) {})) + "extensions: [" + strings.Repeat("{},", 4000) + "]\n",
	} {
		if _, err := Config([]byte(text), release.Private); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, want an error without its text", name, err)
		}
	}
}

func TestLocalAddressesAreNotDialed(t *testing.T) {
	t.Parallel()
	asked := false
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(server.Close)
	for _, reach := range []release.Reach{release.Private, release.Anywhere} {
		want := reach == release.Anywhere
		config, err := Config(kubeconfig(t, func(c *api.Cluster, _ *api.AuthInfo) {
			c.Server, c.TLSServerName, c.CertificateAuthorityData = server.URL, "example.com", pemOf(server)
		}), reach)
		if err != nil {
			t.Fatal(err)
		}
		client, err := Client(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(server.URL)
		if err == nil {
			_ = resp.Body.Close()
		}
		if asked != want || (err == nil) != want {
			t.Errorf("asked %t (%v), want %t", asked, err, want)
		}
	}
}

// CVE-2020-8561: a server redirects the controller, and the answer can be read in its log.
func TestRedirectsAreRefusedAndWarningsAreNotLogged(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		asked := false
		other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
		t.Cleanup(other.Close)
		server := httptest.NewTLSServer(http.RedirectHandler(other.URL, code))
		t.Cleanup(server.Close)
		config, err := Config(kubeconfig(t, func(c *api.Cluster, _ *api.AuthInfo) {
			c.Server, c.TLSServerName, c.CertificateAuthorityData = server.URL, "example.com", pemOf(server)
		}), release.Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		if config.WarningHandlerWithContext != (rest.NoWarnings{}) {
			t.Error("warnings of the server are logged")
		}
		client, err := Client(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(server.URL)
		if err == nil {
			_ = resp.Body.Close()
		}
		if asked || !errors.Is(err, ErrRedirect) || strings.Contains(err.Error(), other.URL) {
			t.Errorf("%d: asked %t, %v, want %v", code, asked, err, ErrRedirect)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(kubeconfig(f, func(*api.Cluster, *api.AuthInfo) {}))
	f.Add(kubeconfig(f, func(_ *api.Cluster, u *api.AuthInfo) {
		u.Exec = &api.ExecConfig{Command: "x", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: "Never"}
	}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := Config(raw, release.Private)
		if err == nil && (config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" || config.Insecure || !strings.HasPrefix(strings.ToLower(config.Host), "https://")) {
			t.Errorf("%+v", config)
		}
	})
}

// pemOf returns the certificate of a server.
func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// The body of an answer is not decoded. Its header is decoded before the client can check anything.
func TestTheHeaderOfAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]bool{16 << 10: true, 256 << 10: false} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Filler", strings.Repeat("x", size))
		}))
		t.Cleanup(server.Close)
		config, err := Config(kubeconfig(t, func(c *api.Cluster, _ *api.AuthInfo) {
			c.Server, c.TLSServerName, c.CertificateAuthorityData = server.URL, "example.com", pemOf(server)
		}), release.Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		client, err := Client(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(server.URL)
		if err == nil {
			_ = resp.Body.Close()
		}
		if (err == nil) != want {
			t.Errorf("a header of %d KiB: %v, want it taken: %t", size>>10, err, want)
		}
	}
}
