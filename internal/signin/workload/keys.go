// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// These constants determine how long keys are used before the issuer is queried again. After freshFor, the keys are
	// still used while the issuer is queried in the background. After dueFor, they are not used until the issuer has
	// responded. Otherwise, a hub that has not verified tokens for some time would accept a removed key one more time.
	// If the issuer does not respond, the keys are used until keptFor has passed.
	freshFor, dueFor, keptFor = 5 * time.Minute, 10 * time.Minute, time.Hour
	// askEvery is the minimum interval between queries to the issuer, even if clients send tokens with unknown keys.
	askEvery = 10 * time.Second
	// failedFor is how long the hub waits before it again queries an issuer that did not respond.
	failedFor = time.Minute
	// askLimit is the time limit of one query.
	askLimit = 8 * time.Second
)

// keySet holds the keys that an issuer publishes, by ID. Keys of different algorithms may share an ID (RFC 7517,
// section 4.5).
type keySet struct {
	keys map[string][]jose.JSONWebKey
	at   time.Time
}

// issuer caches the keys that an issuer publishes. It is safe for concurrent use.
type issuer struct {
	url, discovery string
	client         *http.Client
	now            func() time.Time

	asking singleflight.Group
	mu     sync.Mutex // guards the fields below
	known  keySet
	asked  time.Time
	failed error // the error of the last query
	behind bool  // whether a query is running in the background
}

// withID returns the keys with the given ID. It queries the issuer if no key is known or if the keys are older than
// dueFor. If the keys are older than freshFor, it queries the issuer in the background.
func (i *issuer) withID(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	if keys, count := i.look(id); count {
		return keys, nil
	}
	i.mu.Lock()
	wait, failed := i.now().Sub(i.asked) < askEvery, i.failed
	i.mu.Unlock()
	if !wait {
		failed = i.ask(ctx)
	}
	i.mu.Lock()
	keys := i.known.keys[id]
	kept := i.now().Sub(i.known.at) < keptFor
	i.mu.Unlock()
	switch {
	case len(keys) > 0 && kept:
		return keys, nil
	case failed != nil:
		return nil, failed
	}
	return nil, fmt.Errorf("%w: the token's key is not one of the issuer's keys", connector.ErrRefused)
}

// look returns the known keys with the given ID, and reports whether they can be used. If the keys are older than
// freshFor, look starts a query in the background.
func (i *issuer) look(id string) (keys []jose.JSONWebKey, count bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	keys = i.known.keys[id]
	age, since := i.now().Sub(i.known.at), i.now().Sub(i.asked)
	if down := i.failed != nil && since < failedFor; len(keys) == 0 || age >= keptFor || age >= dueFor && !down {
		return keys, false
	}
	if age >= freshFor && !i.behind && since >= askEvery {
		i.behind = true
		go func() {
			_ = i.ask(context.Background()) // a later request that needs new keys gets the error
			i.mu.Lock()
			defer i.mu.Unlock()
			i.behind = false
		}()
	}
	return keys, true
}

// ask queries the issuer for its keys. Concurrent callers share one query.
func (i *issuer) ask(ctx context.Context) error {
	done := i.asking.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
		defer cancel()
		keys, err := i.fetch(ctx)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked, i.failed = i.now(), err
		if err == nil {
			i.known = keySet{keys: keys, at: i.asked}
		}
		return nil, err
	})
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for the issuer: %w", ctx.Err())
	case result := <-done:
		return result.Err
	}
}

// fetch returns the keys that the issuer currently publishes.
func (i *issuer) fetch(ctx context.Context) (map[string][]jose.JSONWebKey, error) {
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := i.get(ctx, i.discovery, &document); err != nil {
		return nil, fmt.Errorf("ask the issuer for its configuration: %w", err)
	}
	if document.Issuer != i.url {
		return nil, fmt.Errorf("the issuer's configuration names another issuer, %.128q", document.Issuer)
	}
	if to, err := url.Parse(document.Keys); err != nil || to.Scheme != "https" || to.Hostname() == "" || to.User != nil {
		return nil, errors.New("the issuer's configuration has a jwks_uri that is not an https URL")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"` // the client limits the number of keys
	}
	if err := i.get(ctx, document.Keys, &set); err != nil {
		return nil, fmt.Errorf("ask the issuer for its keys: %w", err)
	}
	keys := map[string][]jose.JSONWebKey{}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if untrusted.JSON(raw, &key, untrusted.Small()) != nil || key.KeyID == "" || !key.IsPublic() || key.Use == "enc" {
			continue // other keys do not sign tokens for the hub
		}
		keys[key.KeyID] = append(keys[key.KeyID], key)
	}
	if len(keys) == 0 {
		return nil, errors.New("the issuer has no signing key")
	}
	return keys, nil
}

func (i *issuer) get(ctx context.Context, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return errors.New("the address is malformed")
	}
	response, err := i.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s responds with the status %d", strings.TrimPrefix(address, "https://"), response.StatusCode)
	}
	if err := untrusted.ReadJSON(response.Body, into, untrusted.Large()); err != nil {
		return errors.New("the response is not a JSON document of the expected form")
	}
	return nil
}

// thumbprint identifies a key independently of its ID.
func thumbprint(key jose.JSONWebKey) string {
	sum, err := key.Thumbprint(crypto.SHA256)
	if err != nil { // cannot fail, because the key has already verified a token
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(sum)
}
