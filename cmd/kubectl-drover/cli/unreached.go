// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
)

// Unreached turns an error of net/http and client-go into a message that says which server was not reached and what to
// do. It returns other errors unchanged.
func Unreached(err error) error {
	failed, untrusted := (*url.Error)(nil), (*tls.CertificateVerificationError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	server := "the server"
	if u, err := url.Parse(failed.URL); err == nil {
		server = u.Scheme + "://" + u.Host
	}
	advice := "check the server in the kubeconfig (--kubeconfig or --context name another one), the network, and HTTPS_PROXY"
	switch {
	case errors.As(failed, &untrusted):
		advice = "check the certificate-authority-data of that server in the kubeconfig"
	case failed.Timeout():
		advice = "check the network, or give it more time with --request-timeout"
	}
	return fmt.Errorf("%s was not reached: %w: %s", server, failed.Err, advice)
}
