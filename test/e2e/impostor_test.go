// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/framework"
)

// impostor is a server at the hub's address, with a certificate for this address from another CA.
type impostor struct {
	server *httptest.Server
	// ca is the file with its CA.
	ca string

	mu   sync.Mutex // guards seen
	seen []*http.Request
}

func startImpostor(t *testing.T) *impostor {
	t.Helper()
	authority, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := trust.IssueServing(authority, []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i := &impostor{ca: filepath.Join(t.TempDir(), "ca.crt")}
	if err := os.WriteFile(i.ca, authority.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	i.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.seen = append(i.seen, r)
		i.mu.Unlock()
		if r.URL.Path == protocol.PathCACerts {
			_, _ = w.Write(authority.Cert)
		}
	}))
	i.server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS13}
	i.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	i.server.StartTLS()
	t.Cleanup(i.server.Close)
	return i
}

// requests returns the requests that arrived after a complete handshake.
func (i *impostor) requests() []*http.Request {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]*http.Request(nil), i.seen...)
}

// testImpostor tests for CVE-2024-22030. The agent must reject a certificate that is not from the hub's CA, even if the
// system trusts it.
func testImpostor(t *testing.T, s *system) {
	i := startImpostor(t)
	env := []string{protocol.EnvServer + "=" + i.server.URL, "SSL_CERT_FILE=" + i.ca}
	cluster, manifest := s.created(t, "impostor")
	agent := s.agent(t, manifest, cluster.Name, s.member, agentNamespace(cluster.Name), env...)
	t.Run("a certificate of a CA that only the system trusts is refused before anything is said", func(t *testing.T) {
		awaitLog(t, agent, 20*time.Second, "certificate signed by unknown authority")
		if seen := i.requests(); len(seen) > 0 {
			t.Errorf("the agent said %s %s", seen[0].Method, seen[0].URL)
		}
	})
	kill(t, agent.Process)
	t.Run("nor does an agent that knows checksums only believe the CA that it is shown", func(t *testing.T) {
		dropBundle(t, s.member, agentNamespace(cluster.Name))
		s.startAgent(t, agent, env...)
		awaitLog(t, agent, 20*time.Second, protocol.EnvCAChecksum+": ")
		for _, seen := range i.requests() {
			if seen.URL.Path != protocol.PathCACerts || len(seen.Header["Authorization"]) > 0 {
				t.Errorf("the agent said %s %s", seen.Method, seen.URL)
			}
		}
		if len(i.requests()) == 0 {
			t.Error("the agent did not ask for the CA")
		}
	})
	kill(t, agent.Process)
	t.Run("nothing of it shows on the hub, where the agent joins with checksums only", func(t *testing.T) {
		if c := s.cluster(t, cluster); !framework.NotReady(v1.ReasonAwaitingAgent)(c) {
			t.Errorf("the conditions are %+v, want AwaitingAgent", c.Status.Conditions)
		}
		s.startAgent(t, agent)
		s.await(t, cluster, 20*time.Second, framework.Ready)
	})
}

// dropBundle removes the CA bundle from the Secret that an agent joins with.
func dropBundle(t *testing.T, plane *framework.Plane, namespace string) {
	t.Helper()
	object := secret(t, plane, namespace, protocol.RegistrationSecret)
	joinSecret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object.Name}, Data: map[string][]byte{protocol.KeyToken: object.Data[protocol.KeyToken]}}
	if err := plane.Client.Update(t.Context(), joinSecret); err != nil {
		t.Fatal(err)
	}
}
