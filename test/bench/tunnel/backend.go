// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"
)

// upgradeTo is the protocol of the backend's echo.
const upgradeTo = "bench-echo"

// serveBackend runs the process that replaces a member's API server.
func serveBackend() error {
	t, ended, err := readTask()
	if err != nil {
		return err
	}
	listener, at, err := listenTLS()
	if err != nil {
		return err
	}
	if t.Delay {
		if at.Addr, err = delayed(at.Addr); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: backend(), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		<-ended
		_ = server.Close()
	}()
	if err := announce(at); err != nil {
		return err
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve backend: %w", err)
	}
	return nil
}

func backend() http.Handler {
	small := bytes.Repeat([]byte(`{"kind":"ConfigMap"}`), 60) // 1.2 kB, as a small object has
	block := make([]byte, 64<<10)
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(small)
	})
	mux.HandleFunc("/bulk", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("size"))
		for ; size > 0; size -= len(block) {
			if _, err := w.Write(block[:min(size, len(block))]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/watch", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/upload", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	mux.HandleFunc("/stuck", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/echo", echo)
	return mux
}

// echo upgrades the connection and returns the data that it receives, like an exec session of "cat".
func echo(w http.ResponseWriter, _ *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgradeTo + "\r\n\r\n")
	_ = buffered.Flush()
	_, _ = io.Copy(conn, buffered)
}

// listenTLS listens on loopback with a new certificate.
func listenTLS() (net.Listener, address, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, address{}, fmt.Errorf("generate key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "bench"},
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, address{}, fmt.Errorf("create certificate: %w", err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"http/1.1"},
		MinVersion:   tls.VersionTLS13,
	})
	if err != nil {
		return nil, address{}, fmt.Errorf("listen: %w", err)
	}
	return listener, address{
		Addr: listener.Addr().String(),
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// trust returns a TLS configuration that trusts one certificate.
func (a address) trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.Cert)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

// transport returns a transport for a backend. The function dial opens its connections. If dial is nil, the network is
// used.
func (a address) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:     a.trust(),
		MaxIdleConns:        1000,
		MaxIdleConnsPerHost: 1000,
		DisableCompression:  true,
	}
}
