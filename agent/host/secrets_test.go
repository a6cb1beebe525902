// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/identity"
	v1 "github.com/drover-dev/drover/api/v1"
)

func TestNewJoinCommandReplacesAnOldIdentityAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keeper := identity.New(identity.Options{Secrets: &secrets{folder: dir}, Namespace: dir, ClusterUID: "u",
		Log: logr.Discard()})
	changed := func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		keeper.Changed(ctx)
		return ctx.Err() == nil
	}
	if changed(time.Second) {
		t.Error("a token is found where there is none")
	}
	config := Config{Servers: []string{"https://hub.example.com"}, Trust: v1.TrustSystem}
	if err := Join(dir, config, "a-token-of-the-hub"); err != nil {
		t.Fatal(err)
	}
	if !changed(time.Minute) {
		t.Error("the token of the join command is not found, so an agent that is refused waits for minutes")
	}
}
