// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
)

// The test runs the command as an administrator would, against a server that it must trust and against servers that it
// must not trust.
func TestCommandTrustsOnlyTheHubsCA(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, so this test cannot show that it refuses another CA")
	}
	hub, other := newAuthority(t), newAuthority(t)
	for name, tc := range map[string]struct {
		serving trust.KeyPair
		applied string
	}{
		"the hub's certificate is accepted and the manifest is applied": {hub, "the manifest"},
		"a certificate of another CA is refused and nothing is applied": {other, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := tlsServer(t, tc.serving,
				func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the manifest")) })
			command := registration.Command(registration.ManifestURL(server.URL, strings.Repeat("t", 43)), v1.TrustPinned,
				string(hub.Cert))
			applied, output, err := run(t, command)
			if applied != tc.applied || (err == nil) != (tc.applied != "") {
				t.Errorf("applied %q, want %q (%v)\n%s", applied, tc.applied, err, output)
			}
			if tc.applied == "" && !strings.Contains(output, "certificate") {
				t.Errorf("output %s, want it to say what went wrong", output)
			}
		})
	}
	t.Run("an error of the hub is shown and not applied", func(t *testing.T) {
		const refusal = "this join token has been used: apply 100% of the new one's manifest"
		server := tlsServer(t, hub, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, refusal, http.StatusGone) })
		system := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(system, hub.Cert, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("CURL_CA_BUNDLE", system)
		for _, trust := range []v1.Trust{v1.TrustPinned, v1.TrustSystem} {
			command := registration.Command(registration.ManifestURL(server.URL, strings.Repeat("t", 43)), trust,
				string(hub.Cert))
			if applied, output, err := run(t, command); applied != "" || strings.TrimSpace(output) != refusal || err == nil {
				t.Errorf("trust %s: applied %q, error %v, output %q, want the hub's error shown and nothing applied", trust,
					applied, err, output)
			}
		}
	})
	t.Run("the system's certificates are ignored", func(t *testing.T) {
		command := registration.Command("https://hub.example.com/x.yaml", v1.TrustPinned, string(hub.Cert))
		if !strings.Contains(command, "--capath /dev/null") {
			t.Error("got no --capath, want it, because many builds of curl add the system's CAs to the CAs of --cacert")
		}
	})
}

func TestCommandPinsNoCAWithSystemTrust(t *testing.T) {
	for name, tc := range map[string]struct {
		trust  v1.Trust
		bundle string
	}{
		"with system trust":                          {v1.TrustSystem, "PEM"},
		"pinned, as long as there is nothing to pin": {v1.TrustPinned, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := registration.Command("https://hub.example.com/x.yaml", tc.trust, tc.bundle); !strings.HasPrefix(got,
				"(m=$(curl -sS -w '%{http_code}' https://hub.example.com/x.yaml) && ") {
				t.Errorf("command %q, want it to keep curl's status", got)
			}
		})
	}
}

func newAuthority(t testing.TB) trust.KeyPair {
	t.Helper()
	pair, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// tlsServer serves with a certificate that an authority issued, as the hub does.
func tlsServer(t testing.TB, authority trust.KeyPair, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	cert, err := trust.IssueServing(authority, []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = quiet()
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// run runs a command line with a kubectl that records what it is asked to apply. Like the real one, it fails if that is
// empty.
func run(t testing.TB, command string) (applied, output string, err error) {
	t.Helper()
	dir := t.TempDir()
	kept := filepath.Join(dir, "applied")
	kubectl := "kubectl() { [ \"$*\" = 'apply --server-side --force-conflicts -f -' ] || return 2; cat > '" + kept +
		"'; [ -s '" + kept + "' ]; }\n"
	cmd := exec.CommandContext(t.Context(), "sh", "-c", kubectl+command)
	cmd.Env = append(os.Environ(), "HOME="+dir, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	out, err := cmd.CombinedOutput()
	raw, readErr := os.ReadFile(kept)
	if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
		t.Fatal(readErr)
	}
	return string(raw), string(out), err
}
