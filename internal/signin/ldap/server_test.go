// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
)

// recorded is a connection to a server of a test.
type recorded struct {
	net.Conn
	by *fake
}

// Read records the received bytes.
func (r recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.by.mu.Lock()
	defer r.by.mu.Unlock()
	r.by.received.Write(p[:n])
	return n, err
}

// fake is a server with behavior that no real server has.
type fake struct {
	address  string
	mu       sync.Mutex // guards the rest
	count    int
	received bytes.Buffer
}

func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *fake) got(text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Contains(f.received.Bytes(), []byte(text))
}

// listener serves each connection with a function and then closes it.
func listener(t testing.TB, serve func(recorded)) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{address: l.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.count++
			f.mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				serve(recorded{conn, f})
			})
		}
	})
	return f
}

// secure is like listener, but with TLS. It returns its certificate.
func secure(t testing.TB, serve func(recorded)) (*fake, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	return listener(t, func(conn recorded) {
		serve(recorded{tls.Server(conn.Conn, config), conn.by})
	}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// drain reads until the client closes the connection.
func drain(conn recorded) { _, _ = io.Copy(io.Discard, conn) }

// answer answers the next request with a protocol operation.
func answer(conn recorded, tag ber.Tag, code int64) {
	packet, err := ber.ReadPacket(conn)
	if err != nil {
		return
	}
	response := ber.NewSequence("")
	response.AppendChild(ber.NewInteger(ber.ClassUniversal, ber.TypePrimitive, ber.TagInteger, packet.Children[0].Value,
		""))
	op := ber.Encode(ber.ClassApplication, ber.TypeConstructed, tag, nil, "")
	op.AppendChild(ber.NewInteger(ber.ClassUniversal, ber.TypePrimitive, ber.TagEnumerated, code, ""))
	op.AppendChild(ber.NewString(ber.ClassUniversal, ber.TypePrimitive, ber.TagOctetString, "", ""))
	op.AppendChild(ber.NewString(ber.ClassUniversal, ber.TypePrimitive, ber.TagOctetString,
		"the password was: service secret", ""))
	response.AppendChild(op)
	_, _ = conn.Write(response.Bytes())
}

func bound() (bind, extended ber.Tag) { return 1, 24 }

func to(address string, root []byte) Config {
	users, groups := openLDAP("ou=people,dc=example,dc=org", "ou=groups,dc=example,dc=org")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	return Config{
		Servers: []string{address}, Roots: roots, BindDN: "cn=drover,dc=example,dc=org", BindPassword: secret("service secret"),
		Users: users, Groups: groups, Timeout: maxTimeout,
	}
}

func TestServerWithoutTrustedCertificateGetsNoPassword(t *testing.T) {
	s := openldap(t)
	c := settings(s)
	c.Roots = x509.NewCertPool()
	unasked(t, connectorOf(t, c).Check(t.Context()), "begin TLS: tls: failed to verify certificate")
	c.Servers = []string{s.LDAP}
	unasked(t, connectorOf(t, c).Check(t.Context()), "begin TLS with StartTLS")

	// The certificate is for 127.0.0.1, and not for 127.0.0.2.
	other, roots := secure(t, drain)
	c = to("ldaps://"+strings.Replace(other.address, "127.0.0.1", "localhost", 1), roots)
	unasked(t, connectorOf(t, c).Check(t.Context()), "certificate")
	if other.got("service secret") {
		t.Error("a server with a certificate for another name got the password")
	}
}

func TestServerThatRefusesStartTLSGetsNoPassword(t *testing.T) {
	_, extended := bound()
	s := listener(t, func(conn recorded) {
		answer(conn, extended, 2)
		drain(conn)
	})
	unasked(t, connectorOf(t, to("ldap://"+s.address, nil)).Check(t.Context()), "begin TLS with StartTLS")
	if !s.got("1.3.6.1.4.1.1466.20037") || s.got("service secret") || s.got("drover") {
		t.Errorf("the server got %q, expected the request for StartTLS alone", s.received.String())
	}
}

func TestResponseThatRepeatsThePasswordIsOmittedFromErrors(t *testing.T) {
	bind, _ := bound()
	s, roots := secure(t, func(conn recorded) {
		answer(conn, bind, 80)
		drain(conn)
	})
	err := connectorOf(t, to("ldaps://"+s.address, roots)).Check(t.Context())
	unasked(t, err, "omitted")
	if strings.Contains(err.Error(), "service secret") {
		t.Errorf("the error has the password: %v", err)
	}
}

func TestNextServerIsUsedWhenOneFails(t *testing.T) {
	s := openldap(t)
	bind, _ := bound()
	for name, tt := range map[string]struct {
		scheme string
		serve  func(recorded)
	}{
		"closes":                {"ldaps://", func(recorded) {}},
		"is silent":             {"ldaps://", drain},
		"is silent at StartTLS": {"ldap://", drain},
		"is busy": {"ldaps://", func(conn recorded) {
			answer(conn, bind, 51)
			drain(conn)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			first, roots := listener(t, tt.serve), s.Roots()
			if name == "is busy" {
				var own []byte
				first, own = secure(t, tt.serve)
				roots.AppendCertsFromPEM(own)
			}
			c := settings(s)
			c.Servers, c.Roots = []string{tt.scheme + first.address, s.LDAPS}, roots
			asked := connectorOf(t, c)
			asked.dial = time.Second
			// On a busy machine, the time may also be too short for the server that responds.
			for deadline := time.Now().Add(maxTimeout); ; {
				before := first.asked()
				err := asked.Check(t.Context())
				if err == nil && before > 0 && first.asked() == before {
					return // the server that responded last comes first
				}
				if time.Now().After(deadline) {
					t.Fatalf("after %d questions to the first server the second is not asked alone: %v", before, err)
				}
			}
		})
	}
}

func TestErrorNamesAllServersWhenNoneIsAvailable(t *testing.T) {
	closed := listener(t, func(recorded) {})
	c := to("ldaps://"+closed.address, nil)
	c.Servers = append(c.Servers, "ldap://"+closed.address)
	err := connectorOf(t, c).Check(t.Context())
	unasked(t, err, "no server of the directory serves: ldaps://"+closed.address)
	unasked(t, err, "; ldap://"+closed.address)
}

func TestCallEndsInTimeWhenTheServerStops(t *testing.T) {
	bind, _ := bound()
	s, roots := secure(t, func(conn recorded) {
		answer(conn, bind, 0)
		drain(conn)
	})
	c := to("ldaps://"+s.address, roots)
	c.Timeout = 2 * time.Second
	unasked(t, connectorOf(t, c).Check(t.Context()), "no response in time")

	c.Timeout = maxTimeout
	unasked(t, connectorOf(t, c).Check(within(t, time.Second)), "no response in time")
}

func TestTrafficOfAServerIsBounded(t *testing.T) {
	bind, _ := bound()
	for name, tt := range map[string]struct {
		words string
		send  func(io.Writer)
	}{
		"a message of 1 GiB": {"more than 4194304", func(w io.Writer) { _, _ = w.Write([]byte{0x30, 0x84, 0x40, 0, 0, 0}) }},
		"messages without end": {"sent more than 32 MiB", func(w io.Writer) {
			message := append([]byte{0x30, 0x83, 0x01, 0, 0x05, 0x02, 0x01, 0x7f, 0x04, 0x82, 0xff, 0xfc},
				make([]byte, 0xfffc)...)
			message[4] = byte((len(message) - 5) & 0xff)
			message[3], message[2] = byte((len(message)-5)>>8), byte((len(message)-5)>>16)
			for {
				if _, err := w.Write(message); err != nil {
					return
				}
			}
		}},
		"a message nested without end": {
			"not LDAP", func(w io.Writer) { _, _ = w.Write(bytes.Repeat([]byte{0x30, 0x80}, 1000)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, roots := secure(t, func(conn recorded) {
				answer(conn, bind, 0)
				_, _ = ber.ReadPacket(conn) // the search
				tt.send(conn)
				drain(conn)
			})
			unasked(t, connectorOf(t, to("ldaps://"+s.address, roots)).Check(t.Context()), tt.words)
		})
	}
}

func TestConnectionsOfAProviderAreBounded(t *testing.T) {
	release := make(chan struct{})
	bind, _ := bound()
	s, roots := secure(t, func(conn recorded) {
		answer(conn, bind, 0)
		<-release
	})
	c := connectorOf(t, to("ldaps://"+s.address, roots))
	var calls sync.WaitGroup
	for range maxConnections {
		calls.Go(func() { _ = c.Check(t.Context()) })
	}
	for s.asked() < maxConnections {
		select {
		case <-t.Context().Done():
			t.Fatal("the calls did not begin")
		case <-time.After(10 * time.Millisecond):
		}
	}
	unasked(t, c.Check(within(t, 100*time.Millisecond)), "wait for one of 8 connections")
	if s.asked() != maxConnections {
		t.Errorf("%d connections, expected %d", s.asked(), maxConnections)
	}
	close(release)
	calls.Wait()
	if !c.seats.TryAcquire(maxConnections) {
		t.Error("a connection that has ended still counts")
	}
}
