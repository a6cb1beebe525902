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

// Private headers turn an HTTP/1.1 upgrade, which HTTP/2 does not have, into a POST. Both ends remove them from
// everything that users and members send.
const (
	privatePrefix = "Drover-Tunnel-"
	headerUpgrade = privatePrefix + "Upgrade" // request: the protocols asked for. response: the protocol chosen
	headerMethod  = privatePrefix + "Method"  // request: the method that the POST represents
)

// RoundTrip sends a request to the agent. It does what http.Transport does, with these differences: scheme and host
// of the URL need not mean anything, hop-by-hop headers and Priority are not sent, and Request.Close is ignored.
//
// A request to upgrade that has no body is answered like http.Transport does it: a 101 has a Body that is an
// io.ReadWriteCloser with CloseWrite, any other answer is an ordinary one. With a body the upgrade is not asked for,
// as HTTP allows.
//
// The error is ErrNotProcessed if the request may be sent again elsewhere, ErrHeaderTooLarge if it was refused here,
// and matches Err's if the session ended meanwhile.
func (s *Session) RoundTrip(r *http.Request) (*http.Response, error) {
	if size := requestHeaderSize(r); size > s.maxHeaderBytes {
		closeBody(r)
		return nil, fmt.Errorf("send request: %w: %d bytes where %d are allowed", ErrHeaderTooLarge, size, s.maxHeaderBytes)
	}
	select {
	case <-s.draining:
		closeBody(r)
		return nil, fmt.Errorf("send request: %w: the tunnel is draining", ErrNotProcessed)
	case <-s.Done():
		closeBody(r)
		return nil, fmt.Errorf("send request: %w: tunnel %w", ErrNotProcessed, s.Err())
	default:
	}
	if protocol := upgradeProtocol(r.Header); protocol != "" && !hasBody(r) {
		return s.upgrade(r, protocol)
	}
	return s.exchange(r, !hasBody(r))
}

// exchange sends a request, with the fields of one that asks to upgrade. It may be sent again if it is repeatable, and
// no handler has seen it or it only reads.
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

// responseBody calls release when a request is over.
type responseBody struct {
	io.ReadCloser
	release func() // may be called again
}

// Read is that of the body; the end of the body is the end of the request.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.release()
	}
	return n, err // a reader's errors stay as they are
}

// Close ends the request.
func (b *responseBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close() // it is the same body
}

// explain adds to an error of HTTP/2 what the caller has to know.
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
	// what broke this tunnel must not break others
	case repeatable && !upgrade && s.repeatable(r) && why != nil && !errors.Is(why, ErrProtocol):
		return fmt.Errorf("%w: tunnel %w: %w", ErrNotProcessed, why, err)
	case why != nil:
		return fmt.Errorf("tunnel %w: %w", why, err)
	default:
		return err
	}
}

// reads reports whether a request changes nothing by its method, so that it may be sent again though a handler may have
// seen it. One to upgrade travels as a POST.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

// goingAway says that the agent takes no more requests but has ended none that it took. What fails then, unless by
// its own body, came too late: the agent has promised not to look at it.
func (s *Session) goingAway() bool {
	if cause := s.Err(); cause != nil {
		return errors.Is(cause, errGoodbye)
	}
	return s.client.GoingAway()
}

// staysHere reports whether a header, in any case, is not sent into the tunnel.
func staysHere(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade", "Http2-Settings",
		"Priority":
		return true
	default:
		return isPrivate(name)
	}
}

// isPrivate reports whether a header, in any case, is one of the tunnel's own.
func isPrivate(name string) bool {
	return len(name) >= len(privatePrefix) && strings.EqualFold(name[:len(privatePrefix)], privatePrefix)
}

// upgradeProtocol is the value of the Upgrade header if Connection announces it.
func upgradeProtocol(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "upgrade") {
		return ""
	}
	return strings.Join(h["Upgrade"], ", ")
}

// requestHeaderSize is what the header, the path and the host take.
func requestHeaderSize(r *http.Request) int {
	return headerSize(r.Header) + len(r.URL.RequestURI()) + max(len(r.Host), len(r.URL.Host))
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody
}

// closeBody does what a RoundTripper owes even if it sends nothing.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // nothing was read from it
	}
}

// upgrade sends a request to upgrade as a POST, whose body is what the caller will write.
func (s *Session) upgrade(r *http.Request, protocol string) (*http.Response, error) {
	method := cmp.Or(r.Method, http.MethodGet)
	if !httpguts.ValidHeaderFieldName(method) || method == http.MethodConnect { // both are tokens
		closeBody(r)
		return nil, fmt.Errorf("send request to upgrade: the method is not valid: %q", method)
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
			return nil, fmt.Errorf("send request to upgrade: %w", r.Context().Err())
		}
		return nil, err
	}
	response.Request = r
	chosen := response.Header.Get(headerUpgrade)
	response.Header.Del(headerUpgrade)
	if chosen == "" || response.StatusCode != http.StatusOK {
		_ = writer.Close() // the agent expects no body after all
		response.Body = &responseBody{ReadCloser: response.Body, release: func() { stopWatching(); cancel() }}
		return response, nil
	}
	stopWatching()
	asSwitched(response, chosen, newUpgradedStream(r.Context(), response.Body, writer, cancel))
	return response, nil
}

// asSwitched turns the agent's answer into the 101 that it represents.
func asSwitched(response *http.Response, protocol string, body io.ReadWriteCloser) {
	response.StatusCode = http.StatusSwitchingProtocols
	response.Status = "101 " + http.StatusText(http.StatusSwitchingProtocols)
	response.Proto, response.ProtoMajor, response.ProtoMinor = "HTTP/1.1", 1, 1
	response.ContentLength = 0 // as in a 101 of net/http; -1 would make Response.Write add "Connection: close"
	response.Header.Set("Connection", "Upgrade")
	response.Header.Set("Upgrade", protocol)
	response.Body = body
}
