// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectstore copies files to and from a bucket of an S3-compatible store.
//
// It uses only HTTPS.
package objectstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// defaultEndpoint and defaultRegion are the values for AWS. A private store accepts any region.
	defaultEndpoint = "s3.amazonaws.com"
	defaultRegion   = "us-east-1"
	// partSize is the size, in bytes, of the parts of a large file. A part is sent again if its transfer fails.
	partSize = 16 << 20
	// tries is the maximum number of attempts for a request.
	tries = 5
	// stall is how long a copy may wait for data from the store before it fails.
	stall = time.Minute
	// sumKey is the key of the file's SHA-256 hash in an object's metadata.
	sumKey = "Sha256"
)

// Object is the location of a file in a store.
type Object struct {
	// Endpoint is a host name. It includes the port if the port is not 443. It is empty for AWS.
	Endpoint string
	// Bucket, Region and Key identify the object.
	Bucket, Region, Key string
	// BucketLookup defines how requests address the bucket: LookupDNS or LookupPath. If it is empty, the method depends
	// on the endpoint.
	BucketLookup string
}

// Values of Object.BucketLookup.
const (
	LookupDNS  = "DNS"
	LookupPath = "Path"
)

// lookup returns the method that requests use to address the bucket.
func (o Object) lookup() (minio.BucketLookupType, error) {
	switch o.BucketLookup {
	case "":
		return minio.BucketLookupAuto, nil
	case LookupDNS:
		return minio.BucketLookupDNS, nil
	case LookupPath:
		return minio.BucketLookupPath, nil
	}
	return 0, fmt.Errorf("%q is not a way to name a bucket: write %s or %s", o.BucketLookup, LookupDNS, LookupPath)
}

// String describes an object for users.
func (o Object) String() string {
	return fmt.Sprintf("%s in the bucket %s at %s", o.Key, o.Bucket, cmp.Or(o.Endpoint, defaultEndpoint))
}

// Credentials identify a user to a store. If AccessKey is empty, the machine's own permissions are used. AWS supports
// this.
type Credentials struct {
	AccessKey, SecretKey string
	// CA contains the PEM-encoded CA certificates that are used to verify the store's certificate. If it is empty, the
	// machine's trusted CAs are used.
	CA []byte
}

// Put copies a file to a bucket. While the store is unavailable, Put retries until patience has passed.
func Put(ctx context.Context, o Object, c Credentials, file string, patience time.Duration) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	store, err := dial(o, c)
	if err != nil {
		return err
	}
	options := minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1, SendContentMd5: true,
		UserMetadata: map[string]string{sumKey: text(sum)},
	}
	again := wait.Backoff{Duration: 5 * time.Second, Factor: 2, Jitter: 0.2, Cap: 2 * time.Minute, Steps: math.MaxInt}
	for until := time.Now().Add(patience); ; {
		_, err = store.PutObject(ctx, o.Bucket, o.Key, f, size, options)
		if err == nil {
			return nil
		}
		pause := again.Step()
		if !passes(err) || ctx.Err() != nil || time.Now().Add(pause).After(until) {
			return fmt.Errorf("copy %s to %s: %w", file, o, explained(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
}

// passes reports whether an error is temporary, because the store is unavailable or overloaded.
func passes(err error) bool {
	if certificate := (*tls.CertificateVerificationError)(nil); errors.As(err, &certificate) {
		return false
	}
	code := minio.ToErrorResponse(err).StatusCode
	return code == 0 || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// Get copies an object to a file. If the copy is incomplete or was altered, Get leaves no file behind.
func Get(ctx context.Context, o Object, c Credentials, file string) (err error) {
	store, err := dial(o, c)
	if err != nil {
		return err
	}
	part := file + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	if err := errors.Join(receive(ctx, store, o, f, stall), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", o, file, err)
	}
	return os.Rename(part, file)
}

// receive writes an object to a file, and verifies that it is unchanged. It fails if the store sends no data for the
// duration of stall.
func receive(ctx context.Context, store *minio.Client, o Object, to *os.File, stall time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// minio.Core sends a single GET request. The client's own GetObject method would send a HEAD request first, and an
	// error response to a HEAD request contains no reason.
	object, info, _, err := (minio.Core{Client: store}).GetObject(ctx, o.Bucket, o.Key, minio.GetObjectOptions{})
	if err != nil {
		return explained(err)
	}
	defer object.Close()
	if err := fits(info.Size, to); err != nil {
		return err
	}
	sum := sha256.New()
	idle := time.AfterFunc(stall, func() { cancel(fmt.Errorf("the store has sent nothing for %s", stall)) })
	defer idle.Stop()
	alive := writer(func(p []byte) (int, error) {
		idle.Reset(stall)
		return len(p), nil
	})
	got, err := io.Copy(io.MultiWriter(to, sum, alive), io.LimitReader(object, info.Size+1)) // an extra byte is an error
	if err != nil {
		return explained(cmp.Or(context.Cause(ctx), err))
	}
	if got != info.Size {
		return fmt.Errorf("it has %d bytes, but %d were received", info.Size, got)
	}
	if want := info.UserMetadata[sumKey]; want != "" && !strings.EqualFold(want, text(sum)) {
		return errors.New("its SHA-256 differs from the SHA-256 of the file that was put there: " +
			"the object was changed, or is damaged")
	}
	return nil
}

// fits returns an error if an object would fill the disk. The disk also holds the control plane's etcd data. It must
// have room for the copy and for the data that is restored from the copy.
func fits(size int64, file *os.File) error {
	if size < 0 {
		return errors.New("the store does not say how large it is")
	}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &disk); err != nil {
		return fmt.Errorf("find out how much of the disk is free: %w", err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; size > free/2 {
		return fmt.Errorf("it has %d bytes, and twice as much must be free on the disk of %s, which has %d: make room", size,
			file.Name(), free)
	}
	return nil
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func text(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }

// dial returns a client. The client follows no redirects, so that credentials reach only the specified server.
func dial(o Object, c Credentials) (*minio.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(c.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("ca.crt has no certificate that can be read: give the store's CA as PEM")
		}
	}
	by := credentials.NewIAM("")
	if c.AccessKey != "" || c.SecretKey != "" {
		by = credentials.NewStaticV4(c.AccessKey, c.SecretKey, "")
	}
	lookup, err := o.lookup()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	store, err := minio.New(cmp.Or(o.Endpoint, defaultEndpoint), &minio.Options{
		Creds: by, Secure: true, Region: cmp.Or(o.Region, defaultRegion), MaxRetries: tries, BucketLookup: lookup,
		Transport: bounded{&http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: config, DisableCompression: true,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: maxHeader,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("the endpoint %s: %w", o.Endpoint, err)
	}
	return store, nil
}

// These limits apply to all responses except for the content of objects. They are needed because the library decodes
// XML of any size.
const (
	maxHeader = 64 << 10
	maxAnswer = 256 << 10
)

// bounded limits the bodies of responses that are not objects.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil && (r.Method != http.MethodGet || response.StatusCode/100 != 2) {
		response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	}
	return response, err
}

// explained adds advice to an error from the store.
func explained(err error) error {
	response := minio.ToErrorResponse(err)
	advice := map[string]string{
		minio.NoSuchBucket: "create the bucket", minio.NoSuchKey: "there is no such object: list the objects of the bucket",
		minio.AccessDenied:   "let the access key put and get objects of the bucket",
		"InvalidAccessKeyId": "check accessKey in the Secret", "XAdminUserNotFound": "check accessKey in the Secret",
		"SignatureDoesNotMatch": "check secretKey in the Secret", "AuthorizationHeaderMalformed": "check region",
		"PermanentRedirect": "check endpoint and region",
	}[response.Code]
	unknown, invalid := x509.UnknownAuthorityError{}, x509.HostnameError{}
	switch {
	case errors.As(err, &unknown):
		advice = "put the CA of the store's certificate into the Secret, as ca.crt"
	case errors.As(err, &invalid):
		advice = "name the store by a name or address that its certificate has"
	case response.StatusCode >= 300 && response.StatusCode < 400:
		advice = cmp.Or(advice, "it answers with a redirect, which Drover does not follow: check endpoint and region")
	}
	if code := response.Code; code != "" && !strings.Contains(err.Error(), code) {
		err = fmt.Errorf("%w (%s)", err, code)
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, advice)
}
