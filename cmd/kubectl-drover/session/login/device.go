// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/oauth2"
)

// Device signs a user in with a browser on any computer (RFC 8628). The user opens a URL in the browser and enters a
// code. Device calls show with the URL and the code.
func (i *Issuer) Device(ctx context.Context, show func(url, code string)) (*Session, error) {
	if i.oauth.Endpoint.DeviceAuthURL == "" {
		return nil, fmt.Errorf("%s does not support device codes: omit --device, or use a newer hub", i.URL)
	}
	asked, err := i.oauth.DeviceAuth(i.context(ctx))
	if err != nil {
		return nil, fmt.Errorf("ask %s for a device code: %w", i.URL, err)
	}
	if !i.own(asked.VerificationURI) {
		return nil, fmt.Errorf("the hub %s refers to %q, which is not its own address: contact its administrator", i.URL,
			asked.VerificationURI)
	}
	show(asked.VerificationURI, asked.UserCode)
	token, err := i.oauth.DeviceAccessToken(i.context(ctx), asked)
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.ErrorCode == "access_denied":
		return nil, errors.New("the sign-in was refused in the browser")
	case errors.As(err, &refused) && refused.ErrorCode == "expired_token", errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the code %s was not confirmed in time: start again", asked.UserCode)
	case err != nil:
		return nil, fmt.Errorf("wait for the code to be confirmed at %s: %w", i.URL, err)
	}
	return i.session(ctx, token, "")
}
