// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
)

// Unreached converts an error from net/http or client-go into a message that names the unreachable server and gives
// advice. It returns other errors unchanged.
func Unreached(err error) error {
	return unreached(err, "check the network, HTTPS_PROXY, and the server in the kubeconfig (select another one with "+
		"--kubeconfig or --context)", "check the certificate-authority-data of that server in the kubeconfig")
}

// UnreachedHub does the same as Unreached for the URL of a hub that the user has signed in to or is signing in to.
// Unreached is for the servers in a kubeconfig.
func UnreachedHub(err error) error {
	return unreached(err, "check the URL of the hub, the network, and HTTPS_PROXY",
		"sign in again with \"kubectl drover login URL --ca FILE\"")
}

// unreached adds advice to an error. If the error is about an untrusted certificate, it adds onCertificate instead.
func unreached(err error, advice, onCertificate string) error {
	failed, untrusted := (*url.Error)(nil), (*tls.CertificateVerificationError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	server := "the server"
	if u, err := url.Parse(failed.URL); err == nil {
		server = u.Scheme + "://" + u.Host
	}
	switch {
	case errors.As(failed, &untrusted):
		advice = onCertificate
	case failed.Timeout():
		advice = "check the network, or set a longer --request-timeout"
	}
	return fmt.Errorf("%s was not reached: %w: %s", server, failed.Err, advice)
}
