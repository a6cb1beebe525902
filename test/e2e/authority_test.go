// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

func authoritySecret() types.NamespacedName {
	return types.NamespacedName{Namespace: "drover-system", Name: trust.AuthoritySecret}
}

// authority is the hub's current CA.
func (s *system) authority(ctx context.Context) (trust.State, error) {
	object := &corev1.Secret{}
	if err := s.hub.Client.Get(ctx, authoritySecret(), object); err != nil {
		return trust.State{}, err
	}
	return trust.ReadSecret(object)
}

// annotate sets an annotation on the hub's CA, as a user does.
func (s *system) annotate(t *testing.T, name, value string) {
	t.Helper()
	object := &corev1.Secret{}
	object.Namespace, object.Name = authoritySecret().Namespace, authoritySecret().Name
	patch := []byte(`{"metadata":{"annotations":{"` + name + `":"` + value + `"}}}`)
	if err := s.hub.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// awaitAuthority waits until the CA meets the given conditions and the hub serves with it.
func (s *system) awaitAuthority(t *testing.T, wanted func(trust.State) error) trust.State {
	t.Helper()
	var state trust.State
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		var err error
		if state, err = s.authority(ctx); err == nil {
			err = wanted(state)
		}
		if err == nil && !s.servedBy(t, state.Active) {
			err = errors.New("the hub serves with another certificate")
		}
		return err
	})
	return state
}

// servedBy reports whether the hub serves a certificate that an authority has signed.
func (s *system) servedBy(t *testing.T, authority trust.KeyPair) bool {
	t.Helper()
	config := s.tlsToHub(t)
	config.RootCAs.AppendCertsFromPEM(authority.Cert)
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", s.hub.Address)
	if err != nil {
		return false
	}
	defer conn.Close()
	pair, err := tls.X509KeyPair(authority.Cert, authority.Key)
	secured, ok := conn.(*tls.Conn)
	return err == nil && ok && secured.ConnectionState().PeerCertificates[0].CheckSignatureFrom(pair.Leaf) == nil
}

// changed reports whether another authority signs, and the previous one is still trusted.
func changed(from trust.State) func(trust.State) error {
	return func(now trust.State) error {
		if bytes.Equal(now.Active.Cert, from.Active.Cert) || !bytes.Equal(now.Old, from.Active.Cert) {
			return errors.New("the authority has not changed yet")
		}
		return nil
	}
}

func testAuthority(t *testing.T, s *system, m *changingMember) {
	stopped, sleeper := s.ready(t, "sleeper")
	before, err := s.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	connectedSince := meta.FindStatusCondition(s.cluster(t, m.cluster).Status.Conditions, v1.ConditionConnected).LastTransitionTime
	t.Run("an agent that is away holds up no change, and others learn it", func(t *testing.T) {
		kill(t, sleeper.Process)
		s.await(t, stopped, 10*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		s.annotate(t, v1.AnnotationRotate, "first")
		s.awaitSettings(t, knows(s.awaitAuthority(t, changed(before)).Active))
	})
	t.Run("a kubeconfig of before the change goes on, and so does one with the new authority alone", func(t *testing.T) {
		now, err := s.authority(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for what, state := range map[string]trust.State{"before": before, "the new authority": now} {
			if out, err := s.kubectlTrusting(t, state.Active.Cert, m.cluster, demoToken, "get", "namespaces"); err != nil {
				t.Errorf("with the CA of %s: %v: %s", what, err, out)
			}
		}
		s.worksWithBundle(t, m.cluster)
	})
	t.Run("agents come back, with what they learnt and without", func(t *testing.T) {
		s.startAgent(t, sleeper)
		s.await(t, stopped, 20*time.Second, framework.Ready)
		now := meta.FindStatusCondition(s.cluster(t, m.cluster).Status.Conditions, v1.ConditionConnected)
		if !now.LastTransitionTime.Equal(&connectedSince) {
			t.Errorf("the agent was lost: %+v", now)
		}
		kill(t, m.agent.Process)
		s.await(t, m.cluster, 10*time.Second, framework.NotReady(v1.ReasonTunnelLost))
		s.startAgent(t, m.agent)
		s.await(t, m.cluster, 20*time.Second, framework.Ready)
	})
	t.Run("retire-now cuts off clients that trust only the old one", func(t *testing.T) { testRetireNow(t, s, m, before, stopped, sleeper) })
	t.Run("a new agent joins by the new manifest", func(t *testing.T) {
		s.ready(t, "newcomer")
	})
}

func testRetireNow(t *testing.T, s *system, m *changingMember, before trust.State, stopped types.NamespacedName, sleeper *framework.Agent) {
	kill(t, sleeper.Process)
	s.await(t, stopped, 10*time.Second, framework.NotReady(v1.ReasonTunnelLost))
	first, err := s.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.annotate(t, v1.AnnotationRotate, "second")
	s.awaitAuthority(t, changed(first))
	s.annotate(t, v1.AnnotationRetireNow, "second")
	s.awaitAuthority(t, func(now trust.State) error {
		if len(now.Old)+len(now.Bridges) > 0 {
			return errors.New("the old authority is still trusted")
		}
		return nil
	})
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if out, err := s.kubectlTrusting(t, before.Active.Cert, m.cluster, demoToken, "get", "namespaces"); err == nil || !strings.Contains(err.Error(), "certificate") {
			return fmt.Errorf("a kubeconfig with the old CA alone still works: %w: %s", err, out)
		}
		return nil
	})
	s.worksWithBundle(t, m.cluster)
	s.startAgent(t, sleeper) // it does not know the new authority, and the hub serves with no other
	awaitLog(t, sleeper, 20*time.Second, "certificate signed by unknown authority")
	kill(t, sleeper.Process)
	manifest, err := s.hub.Manifest(within(t, 10*time.Second), stopped, s.cluster(t, stopped).UID)
	if err != nil {
		t.Fatal(err)
	}
	s.agent(t, manifest, stopped.Name, s.member, agentNamespace(stopped.Name))
	s.await(t, stopped, 20*time.Second, framework.Ready)
}

// kubectlTrusting runs kubectl with a kubeconfig that trusts only one CA of the hub.
func (s *system) kubectlTrusting(t *testing.T, ca []byte, cluster types.NamespacedName, token string, args ...string) (string, error) {
	t.Helper()
	path := s.kubeconfig(t, cluster, token)
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, hub := range config.Clusters {
		hub.CertificateAuthority, hub.CertificateAuthorityData = "", ca
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return framework.Kubectl(within(t, 30*time.Second), s.programs, path, nil, args...)
}

// knows returns a check of whether an agent has stored an authority.
func knows(authority trust.KeyPair) func(protocol.Settings) error {
	return func(settings protocol.Settings) error {
		if !bytes.Contains([]byte(settings.CABundle), authority.Cert) {
			return errors.New("the agent has not learnt the next authority")
		}
		return nil
	}
}

// worksWithBundle runs kubectl with a new kubeconfig.
func (s *system) worksWithBundle(t *testing.T, cluster types.NamespacedName) {
	t.Helper()
	if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("kubectl get namespaces: %v: %s", err, out)
	}
}
