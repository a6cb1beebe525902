// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/request"
)

// checkForm refuses requests that are no honest request to a Kubernetes API, whoever sends them.
func checkForm(r *http.Request, limits Limits) error {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		return refusal.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("method %s is not served", r.Method))
	}
	if err := checkConnection(r.Header); err != nil {
		return err
	}
	if r.ContentLength > limits.Body {
		return tooLarge(limits.Body)
	}
	return checkUpgrade(r)
}

// checkConnection refuses a Connection header that asks for the loss of a header that says who the caller is: a proxy on the
// way that obeys would make the caller another user (CVE-2021-31999).
func checkConnection(h http.Header) error {
	for name, values := range h {
		if !strings.EqualFold(name, "Connection") && !strings.EqualFold(name, "Proxy-Connection") {
			continue
		}
		for _, value := range values {
			for option := range strings.SplitSeq(value, ",") {
				if option = strings.Trim(option, " \t"); saysWho(option) {
					return refusal.BadRequest(fmt.Sprintf("the %s header names %q, which must reach the cluster", name, option))
				}
			}
		}
	}
	return nil
}

// saysWho reports whether a header of that name identifies the caller to any proxy on the way.
func saysWho(name string) bool {
	return hasFoldedPrefix(name, "Impersonate-") || hasFoldedPrefix(name, "X-Remote-") || strings.EqualFold(name, "Authorization")
}

// checkUpgrade lets through the upgrades of the Kubernetes API: SPDY and WebSocket. Others (h2c) would be a tunnel
// for requests that are not checked. A browser's WebSocket is let through only from a page of this host (CVE-2019-13209).
func checkUpgrade(r *http.Request) error {
	if !request.IsUpgrade(r.Header) {
		return nil
	}
	protocols := r.Header["Upgrade"]
	if len(protocols) != 1 || !strings.EqualFold(protocols[0], "websocket") && !strings.EqualFold(protocols[0], "SPDY/3.1") {
		return refusal.BadRequest("the request asks to upgrade to something else than websocket or SPDY/3.1")
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return nil
	}
	origin, err := url.Parse(origins[0])
	if err != nil || len(origins) > 1 || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host) {
		return refusal.Forbidden("the WebSocket is asked for by a page of another host; only pages of the hub may open one")
	}
	return nil
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func tooLarge(limit int64) *refusal.Error {
	return refusal.New(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("the body is larger than %d bytes; split it, or copy files with kubectl cp", limit))
}
