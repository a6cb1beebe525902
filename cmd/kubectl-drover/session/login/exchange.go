// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ForCluster exchanges a session's token for a token that is valid only for the Cluster <namespace>/<name> (RFC 8693).
// The new token becomes invalid when the session ends.
func (i *Issuer) ForCluster(ctx context.Context, s *Session, cluster string) (token string, until time.Time, err error) {
	return i.ForAudience(ctx, s, "cluster:"+cluster)
}

// ForAudience exchanges a session's token for a token with a different audience. If the audience is the URL of a
// Cluster on the hub, the token is valid for the Cluster's own address.
func (i *Issuer) ForAudience(ctx context.Context, s *Session, audience string) (token string, until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	form := url.Values{
		"client_id": {clientID}, "grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token": {s.Token}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"}, "audience": {audience},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.oauth.Endpoint.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", time.Time{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	asked := time.Now()
	resp, err := i.client.Do(req)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("ask %s for a token for %s: %w", i.URL, audience, err)
	}
	defer resp.Body.Close()
	var got struct {
		Token   string `json:"access_token"`
		Seconds int64  `json:"expires_in"`
		Error   string `json:"error"`
		Message string `json:"error_description"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&got); err != nil {
		return "", time.Time{}, fmt.Errorf("ask %s for a token for %s: %s: %w", i.URL, audience, resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK || got.Token == "" {
		return "", time.Time{}, fmt.Errorf("%s refused a token for %s: %s: %s", i.URL, audience, got.Error, got.Message)
	}
	return got.Token, asked.Add(time.Duration(got.Seconds) * time.Second), nil
}
