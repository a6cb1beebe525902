// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestLoopbackProbeTriesTheOtherAddressFamily(t *testing.T) {
	t.Parallel()
	for _, listens := range []string{"127.0.0.1", "::1"} {
		for _, asked := range []string{"127.0.0.1", "::1"} {
			listener, err := net.Listen("tcp", net.JoinHostPort(listens, "0"))
			if err != nil {
				t.Skipf("this machine has no loopback of both families: %v", err)
			}
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.Listener = listener
			server.StartTLS() // its certificate is for both
			t.Cleanup(server.Close)
			ca := filepath.Join(t.TempDir(), "ca.crt")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
				0o600); err != nil {
				t.Fatal(err)
			}
			_, port, err := net.SplitHostPort(listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			probe := protocol.HostProbe{Name: "p", URL: "https://" + net.JoinHostPort(asked, port) + "/readyz", CAFile: ca}
			if err := tryProbe(t.Context(), "", probe); err != nil {
				t.Errorf("%s is asked, and %s listens: %v, want success", asked, listens, err)
			}
			server.Close()
			if err := tryProbe(t.Context(), "", probe); err == nil || !strings.Contains(err.Error(), asked) {
				t.Errorf("%s is asked, and nothing listens: %v, want an error that names what was asked", asked, err)
			}
		}
	}
}
