// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"

	"github.com/drover-dev/drover/internal/tunnel/h2"
)

// HTTP/2 does not support HTTP/1.1 upgrades, so these private headers represent an upgrade request as a POST request.
// Both ends remove these headers from all messages from users and members.
const (
	privatePrefix = "Drover-Tunnel-"
	headerUpgrade = privatePrefix + "Upgrade" // request: the protocols to choose from; response: the choice
	headerMethod  = privatePrefix + "Method"  // in a request: the method of the original request
)

// RoundTrip sends a request to the agent. Unlike http.Transport, it ignores Request.Close and the scheme and host of
// the URL, and it does not send hop-by-hop headers or Priority.
//
// RoundTrip handles an upgrade request without a body in the same way as http.Transport. The Body of a 101 response is
// an io.ReadWriteCloser with CloseWrite. Any other response is an ordinary response. If an upgrade request has a body,
// RoundTrip sends it as an ordinary request, as HTTP allows.
//
// The error matches ErrNotProcessed if the request may be sent again through another tunnel, and ErrHeaderTooLarge if
// the header is too large. If the session has ended, the error also matches the error that Err returns.
func (s *Session) RoundTrip(r *http.Request) (*http.Response, error) {
	if size := requestHeaderSize(r); size > s.maxHeaderBytes {
		h2.CloseBody(r)
		return nil, fmt.Errorf("send request: %w: %d bytes, but only %d are allowed",
			ErrHeaderTooLarge, size, s.maxHeaderBytes)
	}
	select {
	case <-s.draining:
		h2.CloseBody(r)
		return nil, fmt.Errorf("send request: %w: the tunnel is draining", ErrNotProcessed)
	case <-s.Done():
		h2.CloseBody(r)
		return nil, fmt.Errorf("send request: %w: tunnel %w", ErrNotProcessed, s.Err())
	default:
	}
	if protocol := upgradeProtocol(r.Header); protocol != "" && !h2.HasBody(r) {
		return s.upgrade(r, protocol)
	}
	return s.exchange(r, !h2.HasBody(r))
}

// exchange sends a request. The fields in upgrade request an upgrade. If the request fails and may be sent again, the
// error matches ErrNotProcessed. repeatable reports whether the request's body allows this.
func (s *Session) exchange(r *http.Request, repeatable bool, upgrade ...h2.Field) (*http.Response, error) {
	s.streams.Add(1)
	release := sync.OnceFunc(func() { s.streams.Add(-1) })
	response, err := s.client.RoundTrip(r, upgrade...)
	if err != nil {
		release()
		return nil, fmt.Errorf("send request: %w", s.explain(r, err, repeatable, len(upgrade) > 0))
	}
	for name := range response.Header {
		if isPrivate(name) && name != headerUpgrade {
			delete(response.Header, name)
		}
	}
	response.Body = &responseBody{ReadCloser: response.Body, release: release}
	return response, nil
}

// responseBody is the body of a response. It calls release when the request has ended.
type responseBody struct {
	io.ReadCloser
	release func() // may be called more than once
}

// Read reads the body. The request ends at the end of the body.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.release()
	}
	return n, err // return the reader's error unchanged
}

// Close ends the request.
func (b *responseBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close() // return the body's error unchanged
}

// explain returns an HTTP/2 error with the details that the caller needs.
func (s *Session) explain(r *http.Request, err error, repeatable, upgrade bool) error {
	var (
		reset  http2.StreamError
		broken http2.ConnectionError
		why    = s.link.why()
	)
	switch {
	case r.Context().Err() != nil:
		return err
	case errors.As(err, &reset):
		if reset.Code == http2.ErrCodeRefusedStream {
			return fmt.Errorf("%w: %w", ErrNotProcessed, err)
		}
		return err
	case errors.As(err, &broken):
		return fmt.Errorf("tunnel %w: %w", ErrProtocol, err)
	case repeatable && s.goingAway():
		return fmt.Errorf("%w: %w", ErrNotProcessed, err)
	// a request that has broken this tunnel must not break another one
	case repeatable && !upgrade && s.repeatable(r) && why != nil && !errors.Is(why, ErrProtocol):
		return fmt.Errorf("%w: tunnel %w: %w", ErrNotProcessed, why, err)
	case why != nil:
		return fmt.Errorf("tunnel %w: %w", why, err)
	default:
		return err
	}
}

// reads reports whether a request is read-only, judging by its method. Such a request may be sent again even if a
// handler may have seen it. The result is false for upgrade requests, because they are sent as POST requests.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

// goingAway reports whether the agent has announced that it accepts no more requests. The agent finishes the requests
// that it has accepted, and does not process later ones. Therefore, a request that fails now was sent too late, unless
// the request's own body failed.
func (s *Session) goingAway() bool {
	if cause := s.Err(); cause != nil {
		return errors.Is(cause, errGoodbye)
	}
	return s.client.GoingAway()
}

// staysHere reports whether a header must not be sent through the tunnel. The name is not case-sensitive.
func staysHere(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade", "Http2-Settings",
		"Priority":
		return true
	default:
		return isPrivate(name)
	}
}

// isPrivate reports whether a header belongs to the tunnel itself. The name is not case-sensitive.
func isPrivate(name string) bool {
	return len(name) >= len(privatePrefix) && strings.EqualFold(name[:len(privatePrefix)], privatePrefix)
}

// upgradeProtocol returns the value of the Upgrade header if the Connection header lists it.
func upgradeProtocol(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "upgrade") {
		return ""
	}
	return strings.Join(h["Upgrade"], ", ")
}

// requestHeaderSize returns the total size of a request's header, path and host.
func requestHeaderSize(r *http.Request) int {
	return headerSize(r.Header) + len(r.URL.RequestURI()) + max(len(r.Host), len(r.URL.Host))
}

// upgrade sends an upgrade request as a POST request. The body of the POST request consists of the data that the
// caller writes after the upgrade.
func (s *Session) upgrade(r *http.Request, protocol string) (*http.Response, error) {
	method := cmp.Or(r.Method, http.MethodGet)
	if !httpguts.ValidHeaderFieldName(method) || method == http.MethodConnect { // must be a token
		h2.CloseBody(r)
		return nil, fmt.Errorf("send upgrade request: the method is not valid: %q", method)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	stopWatching := context.AfterFunc(r.Context(), cancel)
	body, writer := io.Pipe()

	post := r.WithContext(ctx)
	post.Method, post.Body, post.ContentLength, post.GetBody = http.MethodPost, body, -1, nil

	response, err := s.exchange(post, true,
		h2.Field{Name: strings.ToLower(headerMethod), Value: method},
		h2.Field{Name: strings.ToLower(headerUpgrade), Value: protocol})
	if err != nil {
		stopWatching()
		cancel()
		if r.Context().Err() != nil {
			return nil, fmt.Errorf("send upgrade request: %w", r.Context().Err())
		}
		return nil, err
	}
	response.Request = r
	chosen := response.Header.Get(headerUpgrade)
	response.Header.Del(headerUpgrade)
	if chosen == "" || response.StatusCode != http.StatusOK {
		_ = writer.Close() // not upgraded, so the agent expects no more data
		response.Body = &responseBody{ReadCloser: response.Body, release: func() { stopWatching(); cancel() }}
		return response, nil
	}
	stopWatching()
	asSwitched(response, chosen, newUpgradedStream(r.Context(), response.Body, writer, cancel))
	return response, nil
}

// asSwitched converts the agent's response to the 101 response that it represents.
func asSwitched(response *http.Response, protocol string, body io.ReadWriteCloser) {
	response.StatusCode = http.StatusSwitchingProtocols
	response.Status = "101 " + http.StatusText(http.StatusSwitchingProtocols)
	response.Proto, response.ProtoMajor, response.ProtoMinor = "HTTP/1.1", 1, 1
	response.ContentLength = 0 // for -1, Response.Write would add "Connection: close"
	response.Header.Set("Connection", "Upgrade")
	response.Header.Set("Upgrade", protocol)
	response.Body = body
}
