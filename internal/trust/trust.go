// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trust holds the certificates that the hub serves with and those that its agents should trust, and decides how
// both change.
package trust

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// AuthoritySecret is the name of the Secret with the hub's CA, in the manager's namespace. A person asks for a new CA
// by setting the annotation v1.AnnotationRotate on it.
const AuthoritySecret = "drover-ca"

// AuthorityConfigMap is the name of the ConfigMap with the certificates to trust, in the manager's namespace, without
// any key.
const AuthorityConfigMap = "drover-ca"

// ErrNoAuthority says that the hub's CA has not been made or read yet.
var ErrNoAuthority = errors.New("the hub's CA is not there yet")

// Holder holds the current trust. New makes it. All methods may be called concurrently.
type Holder struct {
	hosts []string
	now   func() time.Time

	loaded chan struct{} // closed when the certificates are complete

	mu        sync.Mutex // guards what follows
	state     State
	issued    issued           // by state.Active
	given     *tls.Certificate // the operator's own, nil if there is none
	givenCA   []byte
	awaiting  bool // whether it is not known yet if there is an operator's certificate
	complete  bool // whether loaded is closed
	listeners []func()
}

// issued are certificates that the hub's CA has signed for this process, nil until asked for.
type issued struct{ serving, replica *tls.Certificate }

// New makes a holder for a hub that is reached under the base URLs. Certificates are issued for their hosts, and for
// extraHosts.
func New(urls, extraHosts []string, now func() time.Time) (*Holder, error) {
	hosts, err := Hosts(urls)
	if err != nil {
		return nil, err
	}
	return &Holder{hosts: append(hosts, extraHosts...), now: now, loaded: make(chan struct{})}, nil
}

// OnChange calls f after the trust changed. f must not block.
func (h *Holder) OnChange(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners = append(h.listeners, f)
}

// LoadAuthority loads the hub's CA and identity from their Secret. It refuses what cannot be used, and keeps what was
// loaded before.
func (h *Holder) LoadAuthority(secret *corev1.Secret) error {
	state, err := ReadSecret(secret)
	if err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(state.Active.Cert, state.Active.Key); err != nil {
		return fmt.Errorf("secret %s/%s: active authority: %w", secret.Namespace, secret.Name, err)
	}
	if _, err := protocol.ParseBundle(state.Bundle()); err != nil {
		return fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if _, err := state.WithBridges(&tls.Certificate{}); err != nil {
		return fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	h.change(func() bool {
		same := bytes.Equal(state.Bundle(), h.state.Bundle())
		if !bytes.Equal(state.Active.Cert, h.state.Active.Cert) || !bytes.Equal(state.Bridges, h.state.Bridges) {
			h.issued = issued{}
		}
		h.state = state
		return h.completeLocked() || !same
	})
	return nil
}

// Authority returns the hub's CA as it was loaded last, false if none was.
func (h *Holder) Authority() (State, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, len(h.state.Active.Cert) > 0
}

// Identity returns the hub's identity as it was loaded last, empty if none was.
func (h *Holder) Identity() string {
	state, _ := h.Authority()
	return state.Identity
}

// AwaitGiven records that an operator's own certificate is configured. Until LoadGiven or GivenAbsent is called,
// nothing is served and agents get no settings: otherwise each restart of the hub would remove the operator's CA from
// agents for a moment.
func (h *Holder) AwaitGiven() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaiting = !h.complete
}

// GivenAbsent records that the operator's certificate is missing or invalid. One that was loaded before stays in use;
// otherwise the hub's own CA is used.
func (h *Holder) GivenAbsent() {
	h.change(func() bool {
		h.awaiting = false
		return h.completeLocked()
	})
}

// LoadGiven loads the operator's own serving certificate: tls.crt, tls.key and, if it is not a public one, ca.crt.
func (h *Holder) LoadGiven(secret *corev1.Secret) error {
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	ca := secret.Data[corev1.ServiceAccountRootCAKey]
	if len(ca) > 0 {
		if _, err := protocol.ParseBundle(ca); err != nil {
			return fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
		}
	}
	h.change(func() bool {
		same := bytes.Equal(ca, h.givenCA)
		h.given, h.givenCA, h.awaiting = &cert, ca, false
		return h.completeLocked() || !same
	})
	return nil
}

// change runs f under the lock and notifies the listeners when it returns true.
func (h *Holder) change(f func() bool) {
	h.mu.Lock()
	changed := f()
	listeners := h.listeners
	h.mu.Unlock()
	if changed {
		for _, listen := range listeners {
			listen()
		}
	}
}

// completeLocked reports whether the certificates have become complete now.
func (h *Holder) completeLocked() bool {
	if h.complete || h.awaiting || len(h.state.Active.Cert) == 0 {
		return false
	}
	h.complete = true
	close(h.loaded)
	return true
}

// Wait returns when the certificates are complete, or ctx ends.
func (h *Holder) Wait(ctx context.Context) error {
	select {
	case <-h.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoAuthority, ctx.Err())
	}
}

// Ready returns ErrNoAuthority until the certificates are complete.
func (h *Holder) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return ErrNoAuthority
	}
	return nil
}

// GetCertificate is for tls.Config. It issues a certificate if there is none or the last one is to be renewed.
func (h *Holder) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given != nil && h.complete {
		return h.given, nil
	}
	if serving := h.issued.serving; serving != nil && h.now().Before(RenewAt(serving.Leaf)) {
		return serving, nil
	}
	if !h.complete {
		return nil, ErrNoAuthority
	}
	serving, err := IssueServing(h.state.Active, h.hosts, h.now())
	if err != nil {
		return nil, err
	}
	if serving, err = h.state.WithBridges(serving); err != nil {
		return nil, err
	}
	h.issued.serving = serving
	return serving, nil
}

// Bundle returns the certificates that agents with pinned trust should trust, as PEM: the hub's authorities, then the
// operator's CA. It is empty until the certificates are complete.
func (h *Holder) Bundle() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return nil
	}
	return append(h.state.Bundle(), h.givenCA...)
}
