// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

func authority(t testing.TB) trust.KeyPair {
	t.Helper()
	pair, err := trust.NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func checksum(t testing.TB, cert []byte) string {
	t.Helper()
	sums, err := protocol.CertificateChecksums(cert)
	if err != nil || len(sums) != 1 {
		t.Fatalf("got checksums %v, %v, want one", sums, err)
	}
	return sums[0]
}

func TestParseBundle(t *testing.T) {
	a, b := authority(t), authority(t)
	for name, tc := range map[string]struct {
		bundle []byte
		certs  int // 0 means an error
	}{
		"one certificate":                       {a.Cert, 1},
		"two certificates":                      {slices.Concat(a.Cert, b.Cert), 2},
		"text around certificates is a comment": {slices.Concat([]byte("# the hub's\n"), a.Cert, []byte("# end\n")), 1},
		"nothing":                               {nil, 0},
		"no PEM":                                {[]byte("certificate"), 0},
		"a key among the certificates":          {slices.Concat(a.Cert, a.Key), 0},
		"a certificate that does not parse": {slices.Concat(a.Cert,
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})), 0},
	} {
		t.Run(name, func(t *testing.T) {
			certs, err := protocol.ParseBundle(tc.bundle)
			if (err == nil) != (tc.certs > 0) || len(certs) != tc.certs {
				t.Errorf("got %d certificates, %v, want %d", len(certs), err, tc.certs)
			}
		})
	}
}

func TestPinnedCertificates(t *testing.T) {
	a, b := authority(t), authority(t)
	both := slices.Concat(a.Cert, b.Cert)
	sumA, sumB := checksum(t, a.Cert), checksum(t, b.Cert)
	text := sha256.Sum256(both)
	var colons []string
	for pair := range slices.Chunk([]byte(strings.ToUpper(sumA)), 2) {
		colons = append(colons, string(pair))
	}
	for name, tc := range map[string]struct {
		pins []string
		want []string
	}{
		"only pinned certificates are trusted":                 {[]string{sumA}, []string{sumA}},
		"several pins are allowed":                             {[]string{sumB, sumA}, []string{sumA, sumB}},
		"a pin in the form of openssl counts":                  {[]string{" " + strings.Join(colons, ":")}, []string{sumA}},
		"the checksum of the whole text pins all certificates": {[]string{hex.EncodeToString(text[:])}, []string{sumA, sumB}},
		"a foreign pin pins nothing":                           {[]string{strings.Repeat("0", 64)}, nil},
		"a part of a checksum pins nothing":                    {[]string{sumA[:32]}, nil},
		"an empty pin pins nothing":                            {[]string{""}, nil},
		"no pin pins nothing":                                  {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			certs, err := protocol.PinnedCertificates(both, tc.pins)
			var got []string
			for _, cert := range certs {
				got = append(got, protocol.Checksum(cert))
			}
			if !slices.Equal(got, tc.want) || (tc.want == nil) != errors.Is(err, protocol.ErrUntrustedBundle) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

func FuzzBundles(f *testing.F) {
	a := authority(f)
	f.Add(a.Cert, checksum(f, a.Cert))
	f.Add(a.Key, "")
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), "00")
	f.Fuzz(func(t *testing.T, bundle []byte, pin string) {
		all, err := protocol.ParseBundle(bundle)
		if (err == nil) != (len(all) > 0) {
			t.Fatalf("got %d certificates and %v, want an error if and only if there are none", len(all), err)
		}
		pinned, err := protocol.PinnedCertificates(bundle, []string{pin})
		if err == nil && len(pinned) == 0 {
			t.Fatal("got no error, want one if nothing is pinned")
		}
		text := sha256.Sum256(bundle)
		for _, cert := range pinned {
			if !strings.Contains(strings.ReplaceAll(strings.ToLower(pin), ":", ""), protocol.Checksum(cert)) &&
				!bytes.Contains([]byte(pin), []byte(hex.EncodeToString(text[:]))) {
				t.Fatal("got a certificate that is not pinned")
			}
		}
	})
}
