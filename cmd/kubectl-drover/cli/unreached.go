// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
)

// Unreached converts an error of net/http or client-go into a message that names the unreachable server and gives
// advice. It returns other errors unchanged.
func Unreached(err error) error {
	failed, untrusted := (*url.Error)(nil), (*tls.CertificateVerificationError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	server := "the server"
	if u, err := url.Parse(failed.URL); err == nil {
		server = u.Scheme + "://" + u.Host
	}
	advice := "check the network, HTTPS_PROXY, and the server in the kubeconfig (select another one with --kubeconfig or --context)"
	switch {
	case errors.As(failed, &untrusted):
		advice = "check the certificate-authority-data of that server in the kubeconfig"
	case failed.Timeout():
		advice = "check the network, or set a longer --request-timeout"
	}
	return fmt.Errorf("%s was not reached: %w: %s", server, failed.Err, advice)
}
