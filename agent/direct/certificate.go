// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	servingLifetime   = 30 * 24 * time.Hour
	// backdate is how long before its creation a certificate becomes valid, to allow for clock skew.
	backdate = time.Hour
)

// certificate is the serving certificate of the endpoint.
type certificate struct {
	tls.Certificate
	host  string
	given string // the Secret that contains the certificate; empty if the agent created the certificate
	renew time.Time
}

// due reports whether a new certificate is needed at the given time for the given host and Secret.
func (c *certificate) due(host, given string, now time.Time) bool {
	return c == nil || c.host != host || c.given != given || !now.Before(c.renew)
}

// certify returns the certificate for the given access data. If the agent creates the certificate itself, certify also
// returns the CA.
func (e *Endpoint) certify(ctx context.Context, a *access) (*certificate, string, error) {
	now := e.options.Now()
	if a.TLSSecret != "" && !e.options.APIServer {
		secret, err := e.options.Secrets.Get(ctx, a.TLSSecret)
		if err != nil {
			return nil, "", err
		}
		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			// The error is not wrapped, because it may quote the Secret.
			return nil, "", fmt.Errorf("read Secret %s: it has no matching certificate and key", a.TLSSecret)
		}
		return &certificate{Certificate: pair, host: a.Host, given: a.TLSSecret, renew: now.Add(given)}, "", nil
	}
	authority, err := e.authority(ctx, now)
	if err != nil {
		return nil, "", err
	}
	serving, err := issue(authority, e.host(a), now)
	if err != nil {
		return nil, "", err
	}
	return serving, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]})), nil
}

// authority returns the CA that the agent's replicas share. It creates a CA if there is none or if the current one will
// expire soon.
func (e *Endpoint) authority(ctx context.Context, now time.Time) (*tls.Certificate, error) {
	secret, err := e.options.Secrets.Get(ctx, protocol.DirectAuthority)
	if apierrors.IsNotFound(err) && !e.options.APIServer {
		if secret, err = newAuthority(now); err == nil {
			secret, err = e.options.Secrets.Create(ctx, secret)
		}
		if apierrors.IsAlreadyExists(err) {
			secret, err = e.options.Secrets.Get(ctx, protocol.DirectAuthority)
		}
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || pair.Leaf == nil || !pair.Leaf.IsCA || now.After(pair.Leaf.NotAfter.Add(-servingLifetime)) {
		return nil,
			fmt.Errorf("read Secret %s: it has no CA that is valid for another month: delete it, and the agent creates a new "+
				"one", protocol.DirectAuthority)
	}
	return &pair, nil
}

func newAuthority(now time.Time) (*corev1.Secret, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Drover agent, direct access"}, NotBefore: now.Add(-backdate),
		NotAfter: now.Add(authorityLifetime),
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, raw, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: protocol.DirectAuthority, Labels: protocol.AgentLabels()},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
		},
	}, nil
}

// issue issues a certificate for a host. The key is kept only in memory.
func issue(authority *tls.Certificate, host string, now time.Time) (*certificate, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Drover agent"}, NotBefore: now.Add(-backdate), NotAfter: now.Add(servingLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	key, raw, err := sign(template, authority)
	if err != nil {
		return nil, err
	}
	pair := tls.Certificate{Certificate: [][]byte{raw, authority.Certificate[0]}, PrivateKey: key}
	return &certificate{Certificate: pair, host: host, renew: now.Add(servingLifetime * 2 / 3)}, nil
}

// sign creates a key and a certificate for the key. The certificate is signed by the authority, or self-signed if
// the authority is nil.
func sign(template *x509.Certificate, authority *tls.Certificate) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("generate serial number: %w", err)
	}
	parent, signer := template, any(key)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, errors.New("sign a certificate: the CA and its key do not match")
	}
	return key, raw, nil
}
