// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUntrustedBundle says that no certificate of a CA bundle has a checksum that is pinned.
var ErrUntrustedBundle = errors.New("no certificate of the CA bundle matches the pinned checksums")

// ParseBundle reads the certificates of a PEM bundle. Blocks of other types and anything that does not parse are errors: what is
// trusted must be known completely.
func ParseBundle(bundle []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("parse CA bundle: unexpected PEM block %q", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse CA bundle: certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("parse CA bundle: no certificate in it")
	}
	return certs, nil
}

// Checksum is the SHA-256 of a certificate in DER form, in lower-case hex: the fingerprint that
// "openssl x509 -fingerprint -sha256" prints, without its colons.
func Checksum(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// CertificateChecksums are the checksums of all certificates of a bundle, for EnvCAChecksum.
func CertificateChecksums(bundle []byte) ([]string, error) {
	certs, err := ParseBundle(bundle)
	if err != nil {
		return nil, err
	}
	sums := make([]string, 0, len(certs))
	for _, cert := range certs {
		sums = append(sums, Checksum(cert))
	}
	return sums, nil
}

// PinnedCertificates returns the certificates of a bundle whose checksum is pinned. When the SHA-256 of the bundle's whole text is
// pinned, as operators of Rancher do it, all of them are. It returns ErrUntrustedBundle when none is.
func PinnedCertificates(bundle []byte, checksums []string) ([]*x509.Certificate, error) {
	certs, err := ParseBundle(bundle)
	if err != nil {
		return nil, err
	}
	pinned := make([]string, 0, len(checksums))
	for _, sum := range checksums {
		pinned = append(pinned, strings.ToLower(strings.ReplaceAll(strings.TrimSpace(sum), ":", "")))
	}
	text := sha256.Sum256(bundle)
	if slices.Contains(pinned, hex.EncodeToString(text[:])) {
		return certs, nil
	}
	certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return !slices.Contains(pinned, Checksum(c)) })
	if len(certs) == 0 {
		return nil, ErrUntrustedBundle
	}
	return certs, nil
}
