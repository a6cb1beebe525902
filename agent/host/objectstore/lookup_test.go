// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objectstore

import (
	"strings"
	"testing"
	"time"
)

func TestBucketLookupMatchesTheStore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ endpoint, lookup, want string }{
		"AWS":                              {"", "", "https://bucket.s3."},
		"another store":                    {"s3.example.com:9000", "", "https://s3.example.com:9000/bucket/k?"},
		"one that needs virtual hosts":     {"s3.example.com:9000", LookupDNS, "https://bucket.s3.example.com:9000/k?"},
		"AWS, with the bucket in the path": {"s3.amazonaws.com", LookupPath, "amazonaws.com/bucket/k?"},
	} {
		o := Object{Endpoint: tt.endpoint, Bucket: "bucket", Key: "k", BucketLookup: tt.lookup}
		store, err := dial(o, Credentials{AccessKey: "a", SecretKey: "s"})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := store.PresignedGetObject(t.Context(), o.Bucket, o.Key, time.Minute, nil)
		if err != nil || !strings.Contains(asked.String(), tt.want) {
			t.Errorf("%s: it asks %s (%v), want %s", name, asked, err, tt.want)
		}
	}
	if _, err := dial(Object{Bucket: "b", BucketLookup: "other"}, Credentials{}); err == nil ||
		!strings.Contains(err.Error(), "write DNS or Path") {
		t.Errorf("a lookup that is none: %v, want what to write", err)
	}
}
