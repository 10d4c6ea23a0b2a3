export { type ClientOptions, client, type ServiceCaller } from './client.js'
export { type ServiceHost, serve } from './serve.js'
export type {
  CallOptions,
  Client,
  Fields,
  GeneratedMethod,
  Implementation,
  MessageFields,
  MethodName,
  ReflectedClient,
  ReflectedImplementation,
  RequestOf,
  ResponseOf,
  StaticService,
  Unary,
} from './types.js'
