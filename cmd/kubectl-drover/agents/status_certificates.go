// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

// certificates determines when the hub proxy's CA and certificate expire. No rights on the hub are required if the
// kubeconfig contains the address of the proxy.
func (r *statusReader) certificates(ctx context.Context) error {
	if r.status.Hub.URL == "" {
		return r.publishedCA(ctx)
	}
	roots := (*x509.CertPool)(nil)
	if len(r.ca) > 0 {
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(r.ca)
		r.authority(r.ca)
	}
	at, err := url.Parse(r.status.Hub.URL)
	if err != nil {
		r.problem("the address of the hub's proxy is invalid: %v", err)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), "443")))
	if err != nil {
		r.notYet("the hub's proxy %s was not reached: %v", r.status.Hub.URL, err)
		return nil
	}
	defer conn.Close()
	if encrypted, ok := conn.(*tls.Conn); ok && len(encrypted.ConnectionState().PeerCertificates) > 0 {
		r.certificate("proxy", encrypted.ConnectionState().PeerCertificates[0])
	}
	return nil
}

// publishedCA determines the expiry time of the CA that the manager publishes in a ConfigMap. It does not connect to
// the published addresses, because the API server may belong to a member.
func (r *statusReader) publishedCA(ctx context.Context) error {
	found := &corev1.ConfigMap{}
	err := r.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: trust.AuthorityConfigMap}, found)
	if apierrors.IsNotFound(err) && r.fresh {
		r.notYet("the manager has not published its CA")
		return nil
	}
	if err == nil {
		r.authority([]byte(found.Data[protocol.KeyCABundle]))
	}
	r.status.Unread = append(r.status.Unread, "the certificate of the hub's proxy: its address is not in the "+
		"kubeconfig: see \"kubectl drover use --help\"")
	if apierrors.IsNotFound(err) {
		r.status.Unread = append(r.status.Unread, fmt.Sprintf("the CA: namespace %s has no ConfigMap %s: see "+
			"--manager-namespace", r.namespace, trust.AuthorityConfigMap))
		return nil
	}
	return err
}

// authority records when the first CA in a bundle expires.
func (r *statusReader) authority(bundle []byte) {
	if block, _ := pem.Decode(bundle); block != nil {
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil {
			r.certificate("CA", ca)
		}
	}
}

func (r *statusReader) certificate(name string, c *x509.Certificate) {
	r.status.Certificates = append(r.status.Certificates, certificate{Name: name, Ends: c.NotAfter})
	if c.NotAfter.Sub(r.now) < soon {
		r.problem("the certificate %s ends at %s", name, c.NotAfter.Local().Format(time.RFC3339))
	}
}
