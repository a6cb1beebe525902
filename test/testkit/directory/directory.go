// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package directory starts real LDAP servers for tests: slapd, and Samba as an Active Directory domain controller.
package directory

import (
	"bytes"
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
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
)

// ErrMissing means that a program is not installed. Tests that get it are skipped.
var ErrMissing = errors.New("the program is not installed")

// startTime is how long a server may take to start on a machine that is busy with other tests.
const startTime = 2 * time.Minute

// Server is a running LDAP server that listens only on loopback.
type Server struct {
	// LDAPS and LDAP are the server's URLs. LDAP requires StartTLS.
	LDAPS, LDAP string
	// CA is the CA for verifying the server's certificate, which is valid for 127.0.0.1 and localhost.
	CA []byte
	// BindDN and BindPassword are the credentials of a service account with read access.
	BindDN, BindPassword string
	admin, adminPassword string
	process              *exec.Cmd
	ended                chan struct{}
	folder               string
	log                  *log
}

// Roots is a pool with the server's CA.
func (s *Server) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	return pool
}

// Log returns slapd's log of all requests so far. It sends its own request, and waits until the log contains it.
func (s *Server) Log() (string, error) {
	conn, err := s.Admin()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	mark := "cn=" + rand.Text()
	_, err = conn.Search(goldap.NewSearchRequest(mark, goldap.ScopeBaseObject, goldap.NeverDerefAliases, 1, 0, false, "(cn=*)", []string{"1.1"}, nil))
	if !goldap.IsErrorWithCode(err, goldap.LDAPResultNoSuchObject) && !goldap.IsErrorWithCode(err, goldap.LDAPResultReferral) {
		return "", fmt.Errorf("mark the log: %w", err)
	}
	asked := regexp.MustCompile(`(conn=\d+ op=\d+ )SRCH base="` + mark)
	for deadline := time.After(startTime); ; {
		text := s.log.String()
		if found := asked.FindStringSubmatch(text); found != nil {
			if _, after, ok := strings.Cut(text, found[1]+"SEARCH RESULT"); ok && strings.Contains(after, "\n") {
				return text, nil
			}
		}
		select {
		case <-deadline:
			return "", errors.New("the log does not show what is asked")
		case <-time.After(time.Millisecond):
		}
	}
}

// Admin returns a connection with full write access. The caller must close it.
func (s *Server) Admin() (*goldap.Conn, error) {
	conn, err := goldap.DialURL(s.LDAPS, goldap.DialWithTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.Roots()}))
	if err != nil {
		return nil, fmt.Errorf("connect to the directory: %w", err)
	}
	if err := conn.Bind(s.admin, s.adminPassword); err != nil {
		conn.Close()
		return nil, fmt.Errorf("bind to the directory: %w", err)
	}
	return conn, nil
}

// Stop ends the server's processes.
func (s *Server) Stop() {
	_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	<-s.ended
	_ = os.RemoveAll(s.folder)
}

// inFolder starts a server with its files in a new folder, which is removed when the server stops.
func inFolder(start func(folder string) (*Server, error)) (*Server, error) {
	folder, err := os.MkdirTemp("", "drover-ldap-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	s, err := start(folder)
	if err != nil {
		_ = os.RemoveAll(folder)
		return nil, err
	}
	s.folder = folder
	return s, nil
}

// start starts the program and waits until the administrator can bind.
func (s *Server) start(program string, arguments ...string) error {
	s.log, s.ended = &log{}, make(chan struct{})
	s.process = exec.CommandContext(context.Background(), program, arguments...)
	s.process.Stdout, s.process.Stderr = s.log, s.log
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it may start others
	endWithParent(s.process.SysProcAttr)
	started := make(chan error)
	go func() {
		// The kernel ends the process when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.process.Start()
		started <- err
		if err == nil {
			_ = s.process.Wait()
		}
		close(s.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	deadline := time.After(startTime)
	for {
		conn, err := s.Admin()
		if err == nil {
			return conn.Close()
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s ended: %s", program, s.log)
		case <-deadline:
			s.Stop()
			return fmt.Errorf("%s does not serve: %w: %s", program, err, s.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// issue writes a certificate for loopback and its key, and returns the CA's certificate.
func issue(folder string, addresses ...net.IP) ([]byte, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "directory"}, NotBefore: from, NotAfter: until,
		IPAddresses: addresses, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caRaw, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	leafRaw, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	keyRaw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	caPEM := encode("CERTIFICATE", caRaw)
	for name, content := range map[string][]byte{"ca.pem": caPEM, "cert.pem": encode("CERTIFICATE", leafRaw), "key.pem": encode("PRIVATE KEY", keyRaw)} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("write a certificate: %w", err)
		}
	}
	return caPEM, nil
}

func encode(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// find returns the path of a program. It also searches the folders that only root has in its PATH.
func find(name string) (string, error) {
	for _, folder := range []string{"/usr/sbin", "/usr/local/sbin", "/usr/libexec"} {
		if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrMissing, name)
	}
	return path, nil
}

// log is a server's output.
type log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

var _ io.Writer = (*log)(nil)

// Write keeps a part of the log.
func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the log.
func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
