// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release asks release channels for the version that they lead to.
//
// A user who may create a Plan chooses the URL, and the hub, or the agent of a member, sends the request from its own network. So a Client sends only a GET
// without credentials, follows no redirect, returns nothing of a body, and by default connects to public addresses only.
// It checks the address that it dials, so that a name that resolves to another address the second time (DNS rebinding) gains nothing.
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

// Bounds of a request.
const (
	// timeout of a request, from the look-up of the name to the header of the response.
	timeout = 10 * time.Second
	// maxHeader is how long the header of a response may be, in bytes.
	maxHeader = 32 << 10
	// maxVersion is how long a version may be, as in the schema of Plan.
	maxVersion = 128
)

// Reach is the set of addresses that a Client connects to.
type Reach int

const (
	// Public addresses only.
	Public Reach = iota
	// Private addresses too (RFC 1918, RFC 4193, shared address space), for sites with a channel server of their own.
	Private
	// Anywhere includes this machine, and addresses of its link, where clouds serve credentials.
	Anywhere
)

// ErrAddress means that connecting to a channel's address is not allowed. The error that wraps it says what to do.
var ErrAddress = errors.New("its host has no address that is allowed for a channel")

// refusal is the error for all addresses that a reach does not include, and for names that have none. It is the same for
// each, so that it discloses neither the address nor which names there are in the hub's network.
func (r Reach) refusal() error {
	if r == Public {
		return fmt.Errorf("%w: use one whose name resolves to a public address, or set channels.private in the manager's "+
			"configuration", ErrAddress)
	}
	return fmt.Errorf("%w: use one whose name resolves, and not to an address of this machine, of its link or reserved",
		ErrAddress)
}

// Client asks channels. New makes it. It may be used concurrently.
type Client struct {
	reach           Reach
	direct, proxied http.RoundTripper
	proxy           func(*http.Request) (*url.URL, error)
}

// New makes a Client. It uses the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name. For requests through a proxy, the proxy checks addresses.
func New(reach Reach) *Client {
	transport := func(proxy func(*http.Request) (*url.URL, error), dial func(context.Context, string, string) (net.Conn, error)) http.RoundTripper {
		return &http.Transport{Proxy: proxy, DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader, TLSHandshakeTimeout: timeout}
	}
	return &Client{
		reach: reach, direct: transport(nil, reach.dialer().DialContext), proxied: transport(http.ProxyFromEnvironment, nil), proxy: http.ProxyFromEnvironment,
	}
}

// dialer checks addresses when it dials them.
func (r Reach) dialer() *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !r.Includes(to.Addr()) {
			return r.refusal()
		}
		return nil
	}}
}

// Includes reports whether an address is one that is connected to.
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

// shared is the address space of carriers, which sites use for pods and services.
func shared() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")} }

// never are addresses that are not on the public Internet, or that lead to others: "this network", those of protocols, for benchmarks and
// reserved; of IPv6 those that embed IPv4 ones and would pass for public (also Teredo's), and those of sites. The last are where clouds serve credentials
// and look public: of AWS and Google by IPv6, of Alibaba and Azure.
func never() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "::ffff:0:0:0/96", "2002::/16", "fec0::/10",
		"fd00:ec2::/32", "fd20:ce::/32", "100.100.100.200/32", "168.63.129.16/32",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Latest asks a channel once, and returns the version that it leads to: the last element of the path in the Location of an answer 302, 303, 307
// or 308. It has a digit, so that a login page is not a version. Other answers are errors, and so is a Location with the channel's own path, as servers send whose
// channels are at https. An error never has the URL in it.
func (c *Client) Latest(ctx context.Context, channel string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, channel, nil)
	if err != nil || req.URL.Host == "" || req.URL.Scheme != "https" && req.URL.Scheme != "http" {
		return "", errors.New("it is no URL of the form https://host/path")
	}
	if req.URL.User != nil {
		return "", errors.New("it has a user or a password in it: whoever may read the plan can read them")
	}
	transport := c.direct
	if proxy, err := c.proxy(req); err != nil {
		return "", errors.New("the proxy of the environment cannot be used")
	} else if proxy != nil {
		transport = c.proxied
	}
	resp, err := transport.RoundTrip(req) // a client would follow
	if err != nil {
		return "", fmt.Errorf("no answer: %w", c.reason(err))
	}
	defer resp.Body.Close()
	if !slices.Contains([]int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect}, resp.StatusCode) {
		return "", fmt.Errorf("it answers %d, and not 302, 303, 307 or 308", resp.StatusCode)
	}
	return versionOf(req.URL, resp.Header.Values("Location"))
}

// reason keeps of an error what discloses nothing of the hub's network, such as whether a port is open.
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
		return "", fmt.Errorf("its redirection has %d Locations", len(locations))
	}
	to, err := channel.Parse(locations[0])
	if err != nil {
		return "", errors.New("its Location is no URL")
	}
	if to.Path == channel.Path {
		return "", errors.New("it redirects to itself: if it is at https, say so in the URL")
	}
	version := path.Base(to.Path)
	if strings.HasSuffix(to.Path, "/") || len(version) > maxVersion || !versionForm.MatchString(version) || !strings.ContainsAny(version, "0123456789") {
		return "", errors.New("the last element of its Location is no version")
	}
	return strings.Clone(version), nil // the Location may be long
}
