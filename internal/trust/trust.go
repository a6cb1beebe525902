// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trust holds the hub's serving certificates and the certificates that its agents should trust, and decides
// when to replace them.
package trust

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// AuthoritySecret is the name of the Secret that contains the hub's CA, in the manager's namespace. An administrator
// requests a new CA by setting the annotation v1.AnnotationRotate on this Secret.
const AuthoritySecret = "drover-ca"

// AuthorityConfigMap is the name of the ConfigMap that contains the certificates to trust, in the manager's
// namespace. It contains no keys.
const AuthorityConfigMap = "drover-ca"

// ErrNoAuthority is returned when the hub's CA has not been created or loaded yet.
var ErrNoAuthority = errors.New("the hub's CA has not been loaded yet")

// Holder holds the certificates in use. Use New to create a Holder. All methods are safe for concurrent use.
type Holder struct {
	hosts []string
	now   func() time.Time

	completed chan struct{} // closed when the certificates are complete

	mu        sync.Mutex // guards the following fields
	state     State
	issued    issued           // certificates that state.Active has issued
	given     *tls.Certificate // the operator's own certificate; nil if there is none
	givenCA   []byte
	awaiting  bool // set until it is known whether there is an operator's certificate
	complete  bool // whether completed is closed
	listeners []func()
}

// issued contains the certificates that the hub's CA has issued for this process. A certificate is nil until it is
// first needed.
type issued struct{ serving, replica *tls.Certificate }

// New returns a Holder for a hub with the given base URLs. The hub's certificates are issued for the hosts in these
// URLs and for extraHosts.
func New(urls, extraHosts []string, now func() time.Time) (*Holder, error) {
	hosts, err := Hosts(urls)
	if err != nil {
		return nil, err
	}
	return &Holder{hosts: append(hosts, extraHosts...), now: now, completed: make(chan struct{})}, nil
}

// OnChange registers f, which is called after the certificates to trust have changed. f must not block.
func (h *Holder) OnChange(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners = append(h.listeners, f)
}

// LoadAuthority loads the hub's CA and identity from their Secret. If the Secret is not usable, it returns an error
// and keeps the previous CA and identity.
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

// Authority returns the hub's CA as it was last loaded. It returns false if the CA has never been loaded.
func (h *Holder) Authority() (State, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, len(h.state.Active.Cert) > 0
}

// Identity returns the hub's identity as it was last loaded. It returns "" if the identity has never been loaded.
func (h *Holder) Identity() string {
	state, _ := h.Authority()
	return state.Identity
}

// AwaitGiven records that an operator's own certificate is configured. Until LoadGiven or GivenAbsent is called, no
// certificate is served and agents receive no settings. Otherwise, agents would briefly lose the operator's CA each
// time the hub restarts.
func (h *Holder) AwaitGiven() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaiting = !h.complete
}

// GivenAbsent records that the operator's certificate is missing or invalid. A certificate that was loaded earlier
// remains in use. If none was loaded, the hub's own CA is used.
func (h *Holder) GivenAbsent() {
	h.change(func() bool {
		h.awaiting = false
		return h.completeLocked()
	})
}

// LoadGiven loads the operator's own serving certificate. The Secret contains tls.crt, tls.key and, unless the CA is
// public, ca.crt.
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

// change calls f with the lock held. It notifies the listeners if f returns true.
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

// completeLocked reports whether the certificates have just become complete.
func (h *Holder) completeLocked() bool {
	if h.complete || h.awaiting || len(h.state.Active.Cert) == 0 {
		return false
	}
	h.complete = true
	close(h.completed)
	return true
}

// Wait waits until the certificates are complete or ctx is done.
func (h *Holder) Wait(ctx context.Context) error {
	select {
	case <-h.completed:
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

// GetCertificate is for use in a tls.Config. It issues a certificate if there is none or if the last one is due for
// renewal.
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

// Bundle returns the PEM-encoded certificates that agents with Pinned trust should trust: the hub's authorities first,
// and then the operator's CA. It is empty until the certificates are complete.
func (h *Holder) Bundle() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return nil
	}
	return append(h.state.Bundle(), h.givenCA...)
}

// errNoReplica is returned when the other end has a certificate from the hub's CA that is not a replica's
// certificate.
var errNoReplica = errors.New("the certificate does not belong to a replica of the hub")

// ReplicaTLS returns the configuration for a connection between two replicas of the hub. It can be used for both
// ends. Both ends present a certificate from the hub's own CA that is intended only for replicas. The serving
// certificate of the hub is not accepted. The configuration must be used for a single connection, because it becomes
// outdated when the CA changes.
func (h *Holder) ReplicaTLS() (*tls.Config, error) {
	cert, roots, err := h.replica()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"http/1.1"},
		Certificates: []tls.Certificate{*cert},
		ServerName:   ReplicaName,
		RootCAs:      roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    roots,
		// Session tickets are disabled, so that a certificate is presented on each connection.
		SessionTicketsDisabled: true,
		VerifyConnection:       isReplica,
	}, nil
}

// isReplica rejects certificates from the hub's CA that are not intended for replicas. The chain has already been
// verified.
func isReplica(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 || !slices.Equal(state.PeerCertificates[0].DNSNames, []string{ReplicaName}) {
		return errNoReplica
	}
	return nil
}

// replica returns this replica's certificate and the roots for verifying other replicas. It renews the certificate if
// necessary.
func (h *Holder) replica() (*tls.Certificate, *x509.CertPool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.complete {
		return nil, nil, ErrNoAuthority
	}
	if cert := h.issued.replica; cert == nil || !h.now().Before(RenewAt(cert.Leaf)) {
		renewed, err := IssueReplica(h.state.Active, h.now())
		if err != nil {
			return nil, nil, err
		}
		// another replica that has not loaded this authority yet needs the bridges to verify the certificate
		if h.issued.replica, err = h.state.WithBridges(renewed); err != nil {
			return nil, nil, err
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(h.state.Bundle())
	return h.issued.replica, roots, nil
}
