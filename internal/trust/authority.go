// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto"
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
	"net/url"
	"time"
)

// ReplicaName is the host name in the certificates that replicas of the hub present to each other. It is never
// resolved.
const ReplicaName = "replica.drover.internal"

// Lifetimes of certificates. A serving certificate is replaced when a third of its lifetime remains.
const (
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	ServingLifetime   = 30 * 24 * time.Hour

	// backdate is how far in the past a certificate's validity starts. It allows for clocks that are behind the hub's
	// clock.
	backdate = time.Hour
)

// KeyPair is a certificate and its private key. Both are PEM-encoded.
type KeyPair struct {
	Cert []byte
	Key  []byte
}

// NewAuthority returns a new self-signed ECDSA P-256 certificate authority that is valid for AuthorityLifetime. Its
// certificate does not limit the number of CAs below it, because it has to sign its successors.
func NewAuthority(now time.Time) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("generate CA key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	// The names of two authorities differ even if both were created in the same second, because verifiers look up
	// issuers by name.
	name := fmt.Sprintf("drover-ca-%s-%.8x", now.UTC().Format("20060102150405"), serial.Bytes())
	template := authorityTemplate(serial, pkix.Name{CommonName: name}, now, now.Add(AuthorityLifetime))
	return sign(template, template, key, key)
}

func authorityTemplate(serial *big.Int, subject pkix.Name, now, end time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
}

// errCannotVouch is returned when the certificate of an authority does not allow it to sign the certificate of
// another authority.
var errCannotVouch = errors.New("the certificate of the CA allows no CA below it")

// mayVouch reports whether an authority's certificate allows it to sign the certificate of another authority.
func mayVouch(authority *x509.Certificate) bool {
	return !authority.BasicConstraintsValid || authority.MaxPathLen < 0 ||
		authority.MaxPathLen == 0 && !authority.MaxPathLenZero
}

// CrossSign returns a PEM-encoded certificate for the next authority. The certificate has the next authority's name and
// key, and is signed by the previous authority. It expires no later than either authority.
func CrossSign(before, next KeyPair, now time.Time) ([]byte, error) {
	parent, err := tls.X509KeyPair(before.Cert, before.Key)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	child, err := tls.X509KeyPair(next.Cert, next.Key)
	if err != nil {
		return nil, fmt.Errorf("read next CA: %w", err)
	}
	if !mayVouch(parent.Leaf) {
		return nil, errCannotVouch
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := authorityTemplate(serial, child.Leaf.Subject, now, earlier(child.Leaf.NotAfter, parent.Leaf.NotAfter))
	template.SubjectKeyId = child.Leaf.SubjectKeyId
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Leaf, child.Leaf.PublicKey, parent.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("cross-sign %q: %w", child.Leaf.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// IssueServing issues a server certificate for hosts, which are DNS names or IP addresses. The certificate is valid for
// ServingLifetime, but never longer than the authority. The chain in the result contains only the leaf.
func IssueServing(authority KeyPair, hosts []string, now time.Time) (*tls.Certificate, error) {
	return issue(authority, hosts, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, now)
}

// IssueReplica issues the certificate that a replica of the hub presents to other replicas. The certificate is valid
// for clients and servers. It has the same lifetime as a certificate from IssueServing.
func IssueReplica(authority KeyPair, now time.Time) (*tls.Certificate, error) {
	return issue(authority, []string{ReplicaName},
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, now)
}

func issue(authority KeyPair, hosts []string, usages []x509.ExtKeyUsage, now time.Time) (*tls.Certificate, error) {
	parent, err := tls.X509KeyPair(authority.Cert, authority.Key)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	signer, ok := parent.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("read CA: its key cannot sign")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of certificate: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "drover"},
		NotBefore:    now.Add(-backdate),
		NotAfter:     earlier(now.Add(ServingLifetime), parent.Leaf.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usages,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	pair, err := sign(template, parent.Leaf, key, signer)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("read issued certificate: %w", err)
	}
	return &cert, nil
}

// RenewAt returns the time when a certificate should be replaced. At that time, a third of its lifetime remains.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3)
}

// Hosts returns the host names of base URLs. Use them with IssueServing.
func Hosts(urls []string) ([]string, error) {
	hosts := make([]string, 0, len(urls))
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" {
			return nil, fmt.Errorf("server URL %q has no host", raw)
		}
		hosts = append(hosts, u.Hostname())
	}
	return hosts, nil
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (KeyPair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign certificate %q: %w", template.Subject.CommonName, err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("encode key of %q: %w", template.Subject.CommonName, err)
	}
	return KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}),
	}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	return serial, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
