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
	"net/url"
	"slices"
	"strings"
)

// ErrUntrustedBundle says that no certificate of a CA bundle has a checksum that is pinned.
var ErrUntrustedBundle = errors.New("no certificate of the CA bundle matches the pinned checksums")

// ParseBundle reads the certificates of a PEM bundle. Blocks of other types and anything that does not parse are
// errors: what is trusted must be known completely.
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

// PinnedCertificates returns the certificates of a bundle whose checksum is pinned. When the SHA-256 of the bundle's
// whole text is pinned, as operators of Rancher do it, all of them are. It returns ErrUntrustedBundle when none is.
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

// ServerURL checks a base URL of a hub and returns it without slashes at the end. Only https will do: a connect token
// sent in the clear could be read on the way. The error never holds what is before an @, where a password may be.
func ServerURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("a server is not a URL: write it as https://drover.example.com")
	case u.User != nil:
		return "", fmt.Errorf("server %s has a user name in it: remove what is before the @", u.Host)
	case u.Scheme != "https":
		return "", fmt.Errorf("server %q is not an https URL: agents connect over TLS only, write it as https://drover.example.com", raw)
	case u.Hostname() == "":
		return "", fmt.Errorf("server %q has no host: write it as https://drover.example.com", raw)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("server at %s has a query or fragment: end the URL after its path", u.Host)
	}
	return strings.TrimRight(u.String(), "/"), nil
}
