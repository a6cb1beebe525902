// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// host creates a Host with a token, as its controller does, and waits until the cache contains it.
func (w *world) host(name string) string {
	w.t.Helper()
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Apply(w.t, host)
	token := registration.Token{Value: registration.NewToken(), Created: w.clock.Now(), TTL: time.Hour}
	if err := w.Client.Apply(w.t.Context(), registration.ApplyHostSecret(host, token, "the command"),
		client.FieldOwner("drover"), client.ForceOwnership); err != nil {
		w.t.Fatal(err)
	}
	w.cached(registration.RegistrationSecret(w.name(protocol.HostMember(name))), &corev1.Secret{},
		func(o client.Object) bool {
			return string(o.(*corev1.Secret).Data[registration.KeyToken]) == token.Value
		})
	w.cached(w.name(name), &v1.Host{}, func(o client.Object) bool { return o.GetUID() == host.UID })
	return w.secret(token.Value)
}

func TestHostRegistration(t *testing.T) {
	env := testkit.Shared(t)
	c := startCache(t, env)
	if _, err := c.GetInformer(t.Context(), &v1.Host{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*world){
		"a machine joins as its host, and connects": func(w *world) {
			token, key := w.host("m1"), testkit.Key(w.t)
			response := w.join(token, key, memberUID)
			if response.Cluster.Name != "host:m1" || response.Cluster.Namespace != w.namespace {
				w.t.Errorf("it joined as %v, want its Host", response.Cluster)
			}
			w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
			w.want(w.register(token, request(key, token, memberUID)), http.StatusOK, "") // a retry
		},
		"another machine or another key cannot join with the same token": func(w *world) {
			token, key := w.host("m1"), testkit.Key(w.t)
			w.join(token, key, memberUID)
			w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonTokenUsed)
			w.want(w.register(token, request(key, token, "another-uid")), http.StatusGone, v1.ReasonTokenUsed)
		},
		"a machine cannot join with an expired token": func(w *world) {
			token := w.host("m1")
			w.clock.Advance(25 * time.Hour)
			w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonTokenExpired)
		},
		"a Host does not stand for a Cluster with the same name, nor the Cluster for the Host": func(w *world) {
			hostToken, clusterToken, machine, agent := w.host("same"), w.cluster("same",
				asIs), testkit.Key(w.t), testkit.Key(w.t)
			joined := w.join(hostToken, machine, memberUID)
			err := w.Client.Get(w.t.Context(), registration.AgentSecret(w.name("same")), &corev1.Secret{})
			if !apierrors.IsNotFound(err) {
				w.t.Errorf("read the Cluster's agent: %v, want the Cluster to have none", err)
			}
			imported := w.join(clusterToken, agent, memberUID)
			as := func(ref protocol.ClusterRef) func(*protocol.ConnectClaims) {
				return func(c *protocol.ConnectClaims) { c.Cluster = ref }
			}
			w.want(w.connect(w.connectToken(machine, joined, as(imported.Cluster))), http.StatusGone, v1.ReasonAwaitingAgent)
			w.want(w.connect(w.connectToken(agent, imported, as(joined.Cluster))), http.StatusGone, v1.ReasonAwaitingAgent)
			w.want(w.connect(w.connectToken(machine, joined, asIs)), http.StatusOK, "")
			w.want(w.connect(w.connectToken(agent, imported, asIs)), http.StatusOK, "")
		},
		"a Secret that names a Host but is not owned by it lets no machine join": func(w *world) {
			w.host("m1")
			token := w.secret(registration.NewToken())
			w.Apply(w.t, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: w.namespace, Name: "forged",
					Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindHostJoin, v1.LabelHost: "m1"},
				},
				StringData: map[string]string{registration.KeyToken: token},
			})
			w.cached(w.name("forged"), &corev1.Secret{}, func(client.Object) bool { return true })
			w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusUnauthorized,
				v1.ReasonTokenInvalid)
		},
		"no Cluster manifest is served for a Host's token": func(w *world) {
			if got := w.send(http.MethodGet, protocol.PathImport+w.host("m1")+".yaml", "",
				nil); got.code != http.StatusNotFound {
				w.t.Errorf("got %d %q, want 404", got.code, got.body)
			}
		},
		"only the program for a platform is served, and no other file": func(w *world) {
			for _, platform := range []string{"linux-sparc", "..%2f..%2fetc%2fpasswd", "linux-..", "windows-amd64"} {
				if got := w.send(http.MethodGet, protocol.PathHostAgent+platform, "", nil); got.code != http.StatusNotFound {
					w.t.Errorf("%s: got %d %q, want 404", platform, got.code, got.body)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, env, c)) })
	}
}

// The test runs the command as an administrator would, first against a server with the hub's CA, and then against a
// server with another CA.
func TestHostCommandTrustsOnlyTheHubsCA(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, so this test cannot show that it refuses another CA")
	}
	hub, other := newAuthority(t), newAuthority(t)
	for name, tc := range map[string]struct {
		serving trust.KeyPair
		ran     bool
	}{
		"the hub's certificate is accepted and the script runs":        {hub, true},
		"a certificate of another CA is refused, and no script is run": {other, false},
	} {
		t.Run(name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			server := tlsServer(t, tc.serving, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{ cat; echo "$@"; } >'`+ran+`'`+"\n")
			})
			token := strings.Repeat("t", 43)
			command, err := registration.HostCommand(server.URL, token, v1.TrustPinned, string(hub.Cert))
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", command+" --role worker")
			temporary := t.TempDir()
			cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "TMPDIR="+temporary)
			out, failed := cmd.CombinedOutput()
			raw, _ := os.ReadFile(ran)
			sums, _ := protocol.CertificateChecksums(hub.Cert)
			left, err := os.ReadDir(temporary)
			if err != nil || !tc.ran && len(left) > 0 { // otherwise the script removes it
				t.Errorf("the command left %v, %v, want nothing", left, err)
			}
			given := strings.HasPrefix(string(raw), token+"\n--temporary "+temporary) && strings.Contains(string(raw),
				" --server "+server.URL+" --ca ") && strings.HasSuffix(string(raw), "--ca-checksum "+sums[0]+" --role worker\n")
			if (failed == nil) != tc.ran || given != tc.ran {
				t.Errorf("the command ended with %v, and the script got %q, want the script to run: %t\n%s", failed, raw, tc.ran,
					out)
			}
		})
	}
}
