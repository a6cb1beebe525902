// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release queries release channels for the current version.
//
// Any user who can create a Plan can choose the URL, but the hub or a member's agent sends the request from its own
// network. For this reason, a Client sends only GET requests without credentials, follows no redirects, ignores
// response bodies, and by default connects only to public addresses. It checks the address that it actually dials, so a
// name that resolves to a different address the second time (DNS rebinding) does not circumvent the check.
package release

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Limits for a request.
const (
	// timeout is the time limit for a request, from the name lookup to the arrival of the response headers.
	timeout = 10 * time.Second
	// maxHeader is the maximum size of a response's headers, in bytes.
	maxHeader = 32 << 10
	// maxVersion is the maximum length of a version. The schema of Plans defines the same limit.
	maxVersion = 128
)

// Reach determines the addresses that a Client connects to.
type Reach int

const (
	// Public means that only public addresses are allowed.
	Public Reach = iota
	// Private means that private addresses (RFC 1918, RFC 4193, shared address space) are also allowed, for sites that run
	// their own channel server.
	Private
	// Anywhere means that this machine and link-local addresses are also allowed. Cloud providers serve credentials at
	// link-local addresses.
	Anywhere
)

// ErrAddress is returned when a Client is not allowed to connect to a channel's address. The error that wraps it
// explains what to do.
var ErrAddress = errors.New("its host has no address that is allowed for a channel")

// refusal returns the error for all addresses that a reach does not include, and for names without an address. The
// error is always the same, so that it discloses neither addresses nor the names that exist in the hub's network.
func (r Reach) refusal() error {
	if r == Public {
		return fmt.Errorf("%w: use one whose name resolves to a public address, or set channels.private in the manager's "+
			"configuration", ErrAddress)
	}
	return fmt.Errorf("%w: use one whose name resolves, and not to an address of this machine, of its link or reserved",
		ErrAddress)
}

// Client queries channels for their versions. Use New to create one. It is safe for concurrent use.
type Client struct {
	reach           Reach
	direct, proxied http.RoundTripper
	proxy           func(*http.Request) (*url.URL, error)
}

// New returns a Client. It uses the proxy from HTTPS_PROXY, HTTP_PROXY and NO_PROXY. If a request goes through a
// proxy, the proxy is responsible for checking the address.
func New(reach Reach) *Client {
	transport := func(proxy func(*http.Request) (*url.URL, error), dial func(context.Context, string, string) (net.Conn,
		error)) http.RoundTripper {
		return &http.Transport{Proxy: proxy, DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
			TLSHandshakeTimeout: timeout}
	}
	return &Client{
		reach: reach, direct: transport(nil, reach.dialer().DialContext), proxied: transport(http.ProxyFromEnvironment,
			nil), proxy: http.ProxyFromEnvironment,
	}
}

// dialer returns a dialer that checks each address just before it connects.
func (r Reach) dialer() *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !r.Includes(to.Addr()) {
			return r.refusal()
		}
		return nil
	}}
}

// Includes reports whether a Client may connect to an address.
func (r Reach) Includes(a netip.Addr) bool {
	a = a.Unmap()
	switch {
	case r == Anywhere:
		return true
	case !a.IsGlobalUnicast(), in(never(), a): // loopback, link-local, multicast, unspecified, broadcast
		return false
	case a.IsPrivate(), in(shared(), a):
		return r == Private
	}
	return true
}

func in(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// shared returns the shared address space that is reserved for carriers. Some sites use it for pods and services.
func shared() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")} }

// never returns addresses that are not on the public Internet or that can reach other addresses. They include "this
// network", reserved addresses, and addresses for protocols and benchmarks. In IPv6, they also include site-local
// addresses, and addresses that embed IPv4 addresses, such as Teredo addresses. The last line contains addresses that
// look public, but serve credentials of cloud providers: AWS and Google in IPv6, and Alibaba and Azure in IPv4.
func never() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "::/96", "64:ff9b::/96", "64:ff9b:1::/48",
		"2001::/32", "::ffff:0:0:0/96", "2002::/16", "fec0::/10",
		"fd00:ec2::/32", "fd20:ce::/32", "100.100.100.200/32", "168.63.129.16/32",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Latest queries a channel once and returns its current version. The version is the last path element in the Location
// of a 302, 303, 307 or 308 response. It must contain a digit, so that a login page does not count as a version. Any
// other response is an error. A Location with the channel's own path is also an error, because it usually is a redirect
// from http to https. Errors never contain the URL.
func (c *Client) Latest(ctx context.Context, channel string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, channel, nil)
	if err != nil || req.URL.Host == "" || req.URL.Scheme != "https" && req.URL.Scheme != "http" {
		return "", errors.New("it is not a URL of the form https://host/path")
	}
	if req.URL.User != nil {
		return "", errors.New("it contains a user or a password, which all readers of the plan could see: remove them")
	}
	transport := c.direct
	if proxy, err := c.proxy(req); err != nil {
		return "", errors.New("the proxy of the environment cannot be used")
	} else if proxy != nil {
		transport = c.proxied
	}
	resp, err := transport.RoundTrip(req) // an http.Client would follow redirects
	if err != nil {
		return "", fmt.Errorf("no response: %w", c.reason(err))
	}
	defer resp.Body.Close()
	if !slices.Contains([]int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect}, resp.StatusCode) {
		return "", fmt.Errorf("it responds with %d instead of 302, 303, 307 or 308", resp.StatusCode)
	}
	return versionOf(req.URL, resp.Header.Values("Location"))
}

// reason returns the part of an error that is safe to show. It does not disclose anything about the hub's network, such
// as whether a port is open.
func (c *Client) reason(err error) error {
	var dns *net.DNSError
	switch {
	case errors.Is(err, ErrAddress), errors.As(err, &dns) && dns.IsNotFound && c.reach != Anywhere:
		return c.reach.refusal()
	case errors.As(err, &dns):
		return errors.New("the name of its host cannot be resolved")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not within %s", timeout)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	return errors.New("it cannot be reached, or its certificate is not trusted")
}

var versionForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`)

func versionOf(channel *url.URL, locations []string) (string, error) {
	if len(locations) != 1 {
		return "", fmt.Errorf("its redirect has %d Locations", len(locations))
	}
	to, err := channel.Parse(locations[0])
	if err != nil {
		return "", errors.New("its Location is not a URL")
	}
	if to.Path == channel.Path {
		return "", errors.New("it redirects to itself: if it is at https, say so in the URL")
	}
	version := path.Base(to.Path)
	if strings.HasSuffix(to.Path, "/") || len(version) > maxVersion || !versionForm.MatchString(version) ||
		!strings.ContainsAny(version, "0123456789") {
		return "", errors.New("the last element of its Location is not a version")
	}
	return strings.Clone(version), nil // the Location may be long, and a clone does not keep it in memory
}
