// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
)

// authority is the certificate authority of one control plane.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// certPEM is the certificate that clients trust.
	certPEM []byte
}

// keyPair is a certificate with its key, both as PEM.
type keyPair struct{ cert, key []byte }

// identity is the subject of a certificate. If hosts is set, the certificate is also valid for a server.
type identity struct {
	user   string
	groups []string
	hosts  []string
}

// openAuthority reads name.crt and name.key from dir. It creates the two files if they do not exist. Because the
// files are kept, kubeconfigs remain valid when the plane is restarted.
func openAuthority(dir, name string) (*authority, error) {
	certPath, keyPath := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	key, err := openKey(keyPath)
	if err != nil {
		return nil, err
	}
	certPEM, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		certPEM, err = selfSign(key, name)
		err = errors.Join(err, writeFileAtomic(certPath, certPEM, 0o644))
	}
	if err != nil {
		return nil, fmt.Errorf("open authority %s: %w", name, err)
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return nil, fmt.Errorf("open authority %s: %s holds no certificate: remove %s", name, certPath, dir)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("open authority %s: %w", name, err)
	}
	return &authority{cert: cert, key: key, certPEM: certPEM}, nil
}

// openKey reads a private key from a file. It creates the key if the file does not exist.
func openKey(path string) (crypto.Signer, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open key: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("open key: %s holds no key: remove its folder", path)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("open key %s: %w", path, err)
	}
	return key, nil
}

func createKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	if err := writeFileAtomic(path, encoded, 0o600); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func selfSign(key crypto.Signer, name string) ([]byte, error) {
	template, err := newTemplate(pkix.Name{CommonName: "drover-lab-" + name}, authorityLife)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

func newTemplate(subject pkix.Name, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
	}, nil
}

// issue signs a certificate with a new key.
func (a *authority) issue(id identity) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate for %s: %w", id.user, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: id.user, Organization: id.groups}, certificateLife)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate for %s: %w", id.user, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range id.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(id.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate for %s: %w", id.user, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate for %s: %w", id.user, err)
	}
	return keyPair{cert: encodeCert(der), key: keyPEM}, nil
}

// write stores the pair as name.crt and name.key in dir.
func (k keyPair) write(dir, name string) error {
	return errors.Join(
		writeFileAtomic(filepath.Join(dir, name+".crt"), k.cert, 0o644),
		writeFileAtomic(filepath.Join(dir, name+".key"), k.key, 0o600),
	)
}
