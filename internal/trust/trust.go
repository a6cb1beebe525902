// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trust holds what the hub serves with and what its agents are to trust now.
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

	"github.com/drover-dev/drover/internal/pki"
	"github.com/drover-dev/drover/internal/protocol"
)

// AuthoritySecret is the name of the Secret with the hub's CA, in the manager's namespace. A person asks for a new CA by
// setting the annotation v1.AnnotationRotate on it.
const AuthoritySecret = "drover-ca"

// AuthorityConfigMap is the name of the ConfigMap with the certificates to trust, in the manager's namespace, without any key.
const AuthorityConfigMap = "drover-ca"

// ErrNoAuthority says that the hub's CA has not been made or read yet.
var ErrNoAuthority = errors.New("the hub's CA is not there yet")

// Holder holds the current trust. New makes it. All methods may be called concurrently.
type Holder struct {
	urls  []string
	hosts []string
	now   func() time.Time

	loaded chan struct{} // closed when there is all to serve with

	mu        sync.Mutex // guards what follows
	state     pki.State
	issued    issued           // by state.Active
	given     *tls.Certificate // the operator's own, nil if there is none
	givenCA   []byte
	awaiting  bool // whether it is not known yet if there is an operator's certificate
	complete  bool // whether loaded is closed
	listeners []func()
}

// issued are certificates that the hub's CA has signed for this process, nil until asked for.
type issued struct{ serving, replica *tls.Certificate }

// New makes a holder for a hub that is reached under the base URLs. Certificates are issued for their hosts, and for extraHosts.
func New(urls, extraHosts []string, now func() time.Time) (*Holder, error) {
	hosts, err := pki.Hosts(urls)
	if err != nil {
		return nil, err
	}
	return &Holder{urls: urls, hosts: append(hosts, extraHosts...), now: now, loaded: make(chan struct{})}, nil
}

// OnChange calls f after the trust changed. f must not block.
func (h *Holder) OnChange(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners = append(h.listeners, f)
}

// LoadAuthority takes over the hub's CA from its Secret. One that cannot be served with is refused: the last one stays.
func (h *Holder) LoadAuthority(secret *corev1.Secret) error {
	state, err := pki.ReadSecret(secret)
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

// Authority is the hub's CA as it was loaded last, false if none was.
func (h *Holder) Authority() (pki.State, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, len(h.state.Active.Cert) > 0
}

// AwaitGiven says that there is to be an operator's own certificate: until LoadGiven or GivenAbsent nothing is served and agents are
// told nothing, or each restart of the hub would take the operator's CA from them for a moment.
func (h *Holder) AwaitGiven() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaiting = !h.complete
}

// GivenAbsent says that the operator's certificate is not there, or no good. What was loaded before stays, else the hub's own CA serves.
func (h *Holder) GivenAbsent() {
	h.change(func() bool {
		h.awaiting = false
		return h.completeLocked()
	})
}

// LoadGiven takes over the operator's own serving certificate: tls.crt, tls.key and, if it is not a public one, ca.crt.
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

// completeLocked reports whether what was loaded last makes all that there is to serve with complete.
func (h *Holder) completeLocked() bool {
	if h.complete || h.awaiting || len(h.state.Active.Cert) == 0 {
		return false
	}
	h.complete = true
	close(h.loaded)
	return true
}

// Wait returns when there is all to serve with, or ctx ends.
func (h *Holder) Wait(ctx context.Context) error {
	select {
	case <-h.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoAuthority, ctx.Err())
	}
}

// Ready returns ErrNoAuthority until there is something to serve with.
func (h *Holder) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return ErrNoAuthority
	}
	return nil
}

// GetCertificate is for tls.Config. It issues a certificate when there is none or the last one is due.
func (h *Holder) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given != nil && h.complete {
		return h.given, nil
	}
	if serving := h.issued.serving; serving != nil && h.now().Before(pki.RenewAt(serving.Leaf)) {
		return serving, nil
	}
	if !h.complete {
		return nil, ErrNoAuthority
	}
	serving, err := pki.IssueServing(h.state.Active, h.hosts, h.now())
	if err != nil {
		return nil, err
	}
	if serving, err = h.state.WithBridges(serving); err != nil {
		return nil, err
	}
	h.issued.serving = serving
	return serving, nil
}

// Bundle is what agents with pinned trust are to trust, as PEM: the hub's authorities, then the operator's CA. Empty
// until it is known whole.
func (h *Holder) Bundle() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return nil
	}
	return append(h.state.Bundle(), h.givenCA...)
}

// Settings are what agents receive: where the hub is and which CA to trust. Those that trust their system receive it as well, and ignore
// it, so that a change of their trust finds them prepared.
func (h *Holder) Settings() protocol.Settings {
	return protocol.Settings{Servers: h.urls, CABundle: string(h.Bundle())}
}
