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

// ErrUntrustedBundle is returned when no certificate in a CA bundle has a pinned checksum.
var ErrUntrustedBundle = errors.New("no certificate of the CA bundle matches the pinned checksums")

// ParseBundle returns the certificates in a PEM bundle. It returns an error for blocks of other types and for
// certificates that cannot be parsed, because a partially parsed bundle must not be trusted.
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
		return nil, errors.New("parse CA bundle: the bundle has no certificate")
	}
	return certs, nil
}

// Checksum returns the SHA-256 of a certificate in DER form, in lowercase hex. "openssl x509 -fingerprint -sha256"
// prints the same fingerprint with colons.
func Checksum(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// CertificateChecksums returns the checksums of all certificates in a bundle, for EnvCAChecksum.
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

// PinnedCertificates returns the certificates in a bundle whose checksums are pinned. If the SHA-256 of the whole
// bundle is pinned, as is common in Rancher, it returns all certificates. If no checksum matches, it returns
// ErrUntrustedBundle.
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

// ServerURL checks a base URL of a hub and returns it without trailing slashes. It accepts only https, because a
// connect token could be intercepted on an unencrypted connection. The error never contains the part of the URL before
// an @, because that part may contain a password.
func ServerURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("a server is not a URL: write it as https://drover.example.com")
	case u.User != nil:
		return "", fmt.Errorf("server %s has a user name in it: remove the part before the @", u.Host)
	case u.Scheme != "https":
		return "", fmt.Errorf("server %q is not an https URL: agents connect only over TLS, "+
			"write it as https://drover.example.com", withoutUser(raw))
	case u.Hostname() == "":
		return "", fmt.Errorf("server %q has no host: write it as https://drover.example.com", withoutUser(raw))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("server at %s has a query or fragment: end the URL after its path", u.Host)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// withoutUser removes everything before the last @ from a URL. It does not use url.Parse, because url.Parse finds no
// user in a URL without a scheme, such as "user:password@hub".
func withoutUser(raw string) string { return raw[strings.LastIndexByte(raw, '@')+1:] }
