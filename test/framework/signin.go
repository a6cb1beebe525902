// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
)

// Visitor opens pages of the hub like a user's browser.
type Visitor struct {
	hub     string
	browser *http.Client
}

// NewVisitor returns a Visitor for the hub at a URL. The Visitor connects to an address on this machine.
func NewVisitor(hub, address string, ca []byte) (*Visitor, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("read the hub's CA: it has no certificate")
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
	}
	return &Visitor{hub: hub, browser: &http.Client{Transport: transport, Jar: jar}}, nil
}

// Open returns an error unless users can sign in to the hub.
func (v *Visitor) Open(ctx context.Context) error {
	_, err := v.get(ctx, v.hub+"/.well-known/openid-configuration")
	return err
}

var signInRequest = regexp.MustCompile(`name="request" value="([^"]+)"`)

// Confirm opens the page for a code, and signs in on that page.
func (v *Visitor) Confirm(ctx context.Context, page, code, user, password string) error {
	shown, err := v.get(ctx, page+"?"+url.Values{"user_code": {code}}.Encode())
	if err != nil {
		return err
	}
	found := signInRequest.FindStringSubmatch(shown)
	if found == nil {
		return fmt.Errorf("the page %s has no form to sign in", page)
	}
	form := url.Values{"request": {found[1]}, "user": {user}, "password": {password}}
	body := strings.NewReader(form.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, v.hub+"/v1/auth/login", body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", v.hub)
	_, err = v.do(request)
	return err
}

func (v *Visitor) get(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	return v.do(request)
}

// do returns the text of the response. Any status other than 200 is an error.
func (v *Visitor) do(request *http.Request) (string, error) {
	response, err := v.browser.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s is answered with %s", request.Method, request.URL.Path, response.Status)
	}
	return string(content), err
}

// LogIn runs the plugin's login with a code. The function confirm enters the code on the hub's page.
func LogIn(login *exec.Cmd, confirm func(page, code string) error) error {
	says, err := login.StderrPipe()
	if err != nil {
		return err
	}
	if err := login.Start(); err != nil {
		return err
	}
	var said strings.Builder
	page, code := "", ""
	for lines := bufio.NewScanner(says); code == "" && lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		page, code = shownCode(said.String())
	}
	if code == "" {
		err = errors.New("the plugin shows no page and code")
	} else {
		err = confirm(page, code)
	}
	if err != nil {
		_ = login.Process.Kill() // otherwise, the plugin would wait for the code
	}
	rest, _ := io.ReadAll(says)
	if err = errors.Join(err, login.Wait()); err != nil {
		return fmt.Errorf("%w: %s%s", err, said.String(), rest)
	}
	return nil
}

var shown = regexp.MustCompile(`(https://\S+)\s+and enter the code\s+(\S+)\n`)

// shownCode returns the page and the code that the plugin has printed. Both are empty if the plugin has not printed
// them yet.
func shownCode(said string) (page, code string) {
	if found := shown.FindStringSubmatch(said); found != nil {
		return found[1], found[2]
	}
	return "", ""
}
