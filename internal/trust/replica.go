// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
)

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
