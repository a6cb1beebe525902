// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3server starts a real S3 server for tests.
//
// The server uses TLS and stores buckets as folders.
package s3server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// Credentials of the server's user.
const (
	AccessKey = "access-of-a-test"
	SecretKey = "hush-hush-of-a-test"
	// Bucket is the name of an existing bucket.
	Bucket = "snapshots"
	// Region is the server's region.
	Region = "us-east-1"
)

// Server is a server that runs until the test ends.
type Server struct {
	// Endpoint is the host and port of the server.
	Endpoint string
	// CA is the CA that signed the server's certificate, as PEM.
	CA []byte
	// Folder is the folder that contains the objects of Bucket as files.
	Folder string
	log    string
}

// Start starts the server at an address. The given command, such as nsenter, precedes the server's own command. The
// address "127.0.0.1:0" selects a free loopback port. Start skips the test if the server cannot be built.
func Start(t *testing.T, address string, before ...string) *Server {
	t.Helper()
	tool, err := lab.S3Tool(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("the S3 server cannot be built here: %v", err)
	}
	if strings.HasSuffix(address, ":0") {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		address = listener.Addr().String()
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	s := &Server{Endpoint: address, Folder: filepath.Join(dir, "data", Bucket), log: filepath.Join(dir, "s3.log")}
	err = os.MkdirAll(s.Folder, 0o700)
	if err = errors.Join(err, s.issue(dir)); err != nil {
		t.Fatal(err)
	}
	command := append(before, tool.Assets[lab.S3Server], "--port", address, "--region", Region, "--cert", filepath.Join(dir, "tls.crt"), "--key", filepath.Join(dir, "tls.key"), "--access-log", s.log, "--quiet",
		"posix", "--sidecar", filepath.Join(dir, "sidecar"), filepath.Dir(s.Folder))
	if err := os.Mkdir(filepath.Join(dir, "sidecar"), 0o700); err != nil {
		t.Fatal(err)
	}
	process, err := lab.Command{Name: "s3", Path: command[0], Args: command[1:], LogFile: filepath.Join(dir, "s3.out"), Env: append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Kill()
		if t.Failed() {
			raw, err := os.ReadFile(process.LogFile())
			t.Logf("S3 server: %s (%v)\n%s", raw, err, s.Log(t))
		}
	})
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		raw, err := os.ReadFile("/proc/net/tcp")
		if len(before) > 0 {
			raw, err = os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", process.PID()))
		}
		if _, port, _ := net.SplitHostPort(address); err != nil || !listens(string(raw), port) {
			return fmt.Errorf("the S3 server does not listen at %s (%w)", address, err)
		}
		return nil
	})
	return s
}

// listens reports whether a table from the kernel contains a listening socket on the port.
func listens(table, port string) bool {
	number := 0
	_, _ = fmt.Sscan(port, &number)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			return true
		}
	}
	return false
}

// issue writes a certificate that its own CA has signed.
func (s *Server) issue(dir string) error {
	host, _, err := net.SplitHostPort(s.Endpoint)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "S3 of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.ParseIP(host)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	s.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return errors.Join(os.WriteFile(filepath.Join(dir, "tls.crt"), s.CA, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), 0o600))
}

// Log returns the server's log of requests.
func (s *Server) Log(t testing.TB) string {
	raw, err := os.ReadFile(s.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(raw)
}
