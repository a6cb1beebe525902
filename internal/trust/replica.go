// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
)

// errNoReplica means that the other end has a certificate of the hub's CA, but not one of a replica.
var errNoReplica = errors.New("the certificate is not that of a replica of the hub")

// ReplicaTLS is for a connection between two replicas of the hub, at either end. Both show a certificate of the hub's
// own CA that is for replicas only; that of the hub's port is not. It holds for one connection: it is out of date when
// the CA changes.
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
		// Without tickets each connection sends its certificate.
		SessionTicketsDisabled: true,
		VerifyConnection:       isReplica,
	}, nil
}

// isReplica refuses certificates of the hub's CA that are not for replicas. The chain was verified before.
func isReplica(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 || !slices.Equal(state.PeerCertificates[0].DNSNames, []string{ReplicaName}) {
		return errNoReplica
	}
	return nil
}

// replica returns the certificate of this replica, issued anew when it is due, and the roots of the others.
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
		// a replica that has not loaded this authority yet verifies by them
		if h.issued.replica, err = h.state.WithBridges(renewed); err != nil {
			return nil, nil, err
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(h.state.Bundle())
	return h.issued.replica, roots, nil
}
